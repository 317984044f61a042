"""The names of containers: from the files of their engines, or the annotations in their config.json.

The maker of a container chooses its name and most annotations, so a name proves nothing, and is escaped where it is
shown.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.engines.docker import dockerd
from gpushim.engines.processes import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[str], Any]  # reads a JSON file; None if it is not there, or not to be had

DOCKER_ROOT, USERS_DOCKER_ROOT = "/var/lib/docker", ".local/share/docker"
PODMAN_RUN = "/run/containers/storage"
NERDCTL = "nerdctl/name"
# Annotations of the engines of CRI about a container's pod, in the order of Pod's members.
CONTAINERD = tuple(
    f"io.kubernetes.cri.{word}" for word in ("sandbox-namespace", "sandbox-name", "container-name", "sandbox-uid")
)
KUBELET = (
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.container.name",
    "io.kubernetes.pod.uid",
)  # labels of kubelet's, which releases of CRI-O have made annotations too
CRIO = "io.kubernetes.cri-o.Name"  # k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT, and no name of these has a "_"


class Pod(NamedTuple):
    """A container's name in its pod, and the pod; a member is "" if it is unknown."""

    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""


def pod(annotations: dict[str, Any], engine: str) -> Pod:
    """Return the pod of a container; the container's name of a pod's sandbox is "".

    `engine` is as in gpushim.engines.processes.table: a pod's author can add annotations, so only those of the
    container's own engine count.
    """
    parts = str(annotations.get(CRIO, "")).split("_")
    if engine == "cri-o" and len(parts) in (5, 6) and parts[0] == "k8s":
        *_, container, name, namespace, uid, _ = ["", *parts[1:]]
        return Pod(namespace, name, container, uid)
    keys = {"containerd (CRI)": CONTAINERD, "cri-o": KUBELET}.get(engine, ())
    return Pod(*(str(annotations.get(key, "")) for key in keys))


class Names:
    """Names of containers; each file that names several containers is read once."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, str]] = {}

    @cached_property
    def _dockerds(self) -> list[running.Engine]:
        return [engine for engine in running.find() if engine.name == dockerd.PROGRAM]

    def directories(self, key: str) -> list[str]:
        """List the directories that running dockerds have under a key of daemon.json, such as "exec-root"."""
        roots = [
            (engine, root)
            for engine in self._dockerds
            for root in [*engine.option(f"--{key}"), dockerd.settings(dockerd.config(engine)).get(key)]
        ]
        return [engine.host_path(root) for engine, root in roots if isinstance(root, str) and root.startswith("/")]

    def of_docker(self, identity: str, user: str, read: Read) -> str:
        """Return a container's name in Docker's files; "" if no dockerd has it. `user` is a runtime directory."""
        for root in users_docker_root(user) if user else [*self.directories("data-root"), DOCKER_ROOT]:
            # Where root's daemon remaps users, its own is in a directory UID.GID of it.
            remapped = [] if user else sorted(glob.glob(f"{glob.escape(root)}/[0-9]*.[0-9]*"))
            for folder in [root, *remapped][:8]:
                config = read(f"{folder}/containers/{identity}/config.v2.json")
                name = config.get("Name") if isinstance(config, dict) else None
                if isinstance(name, str) and name:
                    return name.removeprefix("/")
        return ""

    def of_podman(self, identity: str, bundle: str, user: str, read: Read) -> str:
        """Return a container's name in the storage of Podman and CRI-O; "" if it has none.

        `bundle` is GRAPHROOT/DRIVER-containers/ID/userdata; `user` is as in `of_docker`.
        """
        folder, _, name = bundle.rpartition("/userdata")[0].rpartition("/")
        if name != identity or not folder.endswith("-containers"):
            return ""
        # Those of `podman run --rm` are kept apart, in a directory that a boot empties.
        run = f"{user}/containers" if user else PODMAN_RUN
        for path in (f"{folder}/containers.json", f"{run}/{os.path.basename(folder)}/volatile-containers.json"):
            if path not in self._lists:
                self._lists[path] = dict(_listed(read(path)))
            if identity in self._lists[path]:
                return self._lists[path][identity]
        return ""


def users_docker_root(user: str) -> list[str]:
    """Return the data-root of a user's dockerd, by that user's runtime directory; [] without such a user."""
    with contextlib.suppress(KeyError, ValueError):
        return [f"{pwd.getpwuid(int(os.path.basename(user))).pw_dir}/{USERS_DOCKER_ROOT}"]
    return []


def _listed(entries: Any) -> Iterator[tuple[str, str]]:
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("names"), list):
            yield entry["id"], ", ".join(map(str, entry["names"]))
