"""What a container's engine calls it: from the files that the engine keeps, or the annotations in its config.json.

Anybody who makes a container chooses its name and most annotations, so that a name proves nothing; whoever shows it
escapes it. Out of scope: which containers there are (holders.py).
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
from typing import TYPE_CHECKING, Any

from gpushim.engines import running

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[str], Any]  # reads a JSON file; None if it is not there, or not to be had

DOCKER_CONFIG = "/etc/docker/daemon.json"
DOCKER_ROOT, USERS_DOCKER_ROOT = "/var/lib/docker", ".local/share/docker"
PODMAN_RUN = "/run/containers/storage"
ANNOTATIONS = (
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"),
    ("io.kubernetes.cri-o.ContainerName",),
    ("nerdctl/name",),
)


def annotated(annotations: dict[str, Any]) -> str:
    """Return the name that annotations tell; "" if none does."""
    for keys in ANNOTATIONS:
        if keys[-1] in annotations:
            return "/".join(str(annotations[key]) for key in keys if key in annotations)
    return ""


def docker_roots(user: str, settings: Callable[[str], dict[str, Any]]) -> list[str]:
    """List the directories in which the dockerds that run keep what they know.

    Args:
        user: the runtime directory of the user whose containers are meant; "" for root's.
        settings: reads a daemon.json.
    """
    if user:
        with contextlib.suppress(KeyError, ValueError):
            return [f"{pwd.getpwuid(int(os.path.basename(user))).pw_dir}/{USERS_DOCKER_ROOT}"]
        return []
    roots = []
    for engine in running.find():
        if engine.name == "dockerd":
            written = settings(engine.seen(engine.config or DOCKER_CONFIG))
            named = [*engine.option("--data-root"), written.get("data-root")]
            roots += [engine.seen(root) for root in named if isinstance(root, str) and root.startswith("/")]
    return [*roots, DOCKER_ROOT]


def of_docker(identity: str, roots: list[str], read: Read) -> str:
    """Return a container's name as Docker has it; "" if none of the roots knows it.

    Args:
        identity: of the container.
        roots: from `docker_roots`; where a daemon remaps users, its own is in a directory UID.GID of it.
        read: a file.
    """
    for root in roots:
        folders = [root, *glob.iglob(f"{glob.escape(root)}/[0-9]*.[0-9]*")]
        for folder in folders[:8]:
            found = read(f"{folder}/containers/{identity}/config.v2.json")
            name = found.get("Name") if isinstance(found, dict) else None
            if isinstance(name, str) and name:
                return name.removeprefix("/")
    return ""


def of_podman(identity: str, bundle: str, user: str, read: Read) -> str:
    """Return a container's name as the storage of Podman and CRI-O has it; "" if it does not.

    Args:
        identity: of the container.
        bundle: its directory, GRAPHROOT/DRIVER-containers/ID/userdata.
        user: as `docker_roots` takes it.
        read: a file.
    """
    folder, _, own = bundle.rpartition("/userdata")[0].rpartition("/")
    if own != identity or not folder.endswith("-containers"):
        return ""
    # Those of `podman run --rm` are kept apart, where a boot forgets them.
    run = f"{user}/containers" if user else PODMAN_RUN
    for path in (f"{folder}/containers.json", f"{run}/{os.path.basename(folder)}/volatile-containers.json"):
        for entry in found if isinstance(found := read(path), list) else ():
            if isinstance(entry, dict) and entry.get("id") == identity and isinstance(entry.get("names"), list):
                return ", ".join(map(str, entry["names"]))
    return ""
