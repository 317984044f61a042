"""Handlers of CRI-O, and the pods that need them, as the files tell that CRI-O keeps of its containers.

CRI-O asks for a container's handler by name as long as the container is there: without it one that runs can be
neither stopped nor executed in, and one that has ended, or was never started, cannot be removed, whatever monitor
(conmon, conmon-rs) it has or had. Pods that name none have the default one.
Out of scope: which handlers go (crio.py).
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.engines.settings import toml
from gpushim.engines.settings.setup import is_ours
from gpushim.ground import bounds, system
from gpushim.ground.errors import GpushimError, quote
from gpushim.paths import mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.engines.settings.files import Change

TABLE = ("crio", "runtime")  # where CRI-O's settings have the handlers, and the default's name
STOCK = ("runc", "crun")  # what CRI-O has by itself, and gpushim-runtime was tried with
ROOT, STORAGE = "/var/lib/containers/storage", ("/usr/share/containers/storage.conf", "/etc/containers/storage.conf")
DEFAULT = ""  # the handler of pods that name none
SHOWN = 8  # pods
WRITING = 0.5  # seconds in which CRI-O has written a config.json, which it does in place
_CRIO, _POD = "io.kubernetes.cri-o.", "io.kubernetes.pod."
_SPOOFED = "spoofed.crio.io"  # a pod's own container that is only written down


def root(values: list[object], storage: list[str]) -> str:
    """Return where CRI-O keeps its containers (crio(8), containers-storage.conf(5)).

    Args:
        values: what its command line, its environment and its settings say, the first that says something counts.
        storage: paths of the settings of containers/storage, of which the last that is there counts.
    """
    last = [path for path in storage if os.path.exists(path)][-1:]
    shared = toml.table(toml.merged(last), "storage").get("graphroot")
    return str(next(filter(None, [*values, shared]), ROOT))


def needed(read: list[str], changes: list[Change], storage: str, must_exist: bool = False) -> dict[str, list[str]]:
    """Return the pods that need a handler which changes take away, by its name, DEFAULT for the default.

    Args:
        read: files and directories that CRI-O reads, as `toml.merged` takes them.
        changes: of these files, or of others.
        storage: as for `pods`.
        must_exist: as for `pods`.

    Raises:
        GpushimError: it is unknown which pods CRI-O has.
    """
    if all(change.new == change.old for change in changes):
        return {}
    drafts = {change.path: change.new for change in changes}
    had, has = (toml.table(toml.merged(read, instead), *TABLE) for instead in ({}, drafts))
    removed = {*toml.table(had, "runtimes")} - {*toml.table(has, "runtimes")} - {*STOCK}
    removed |= {DEFAULT} if _is_another(had, has) else set()
    pods_by_handler = pods(storage, must_exist) if removed else {}
    return {name: pods_by_handler[name] for name in sorted(removed) if name in pods_by_handler}


def _is_another(had: dict[str, Any], has: dict[str, Any]) -> bool:
    """Return whether the default is gpushim's no longer, and its containers would get another runtime."""
    own_entry, other_entry = (toml.table(data, "runtimes", str(data.get("default_runtime"))) for data in (had, has))
    if not is_ours(own_entry.get("runtime_path")) or is_ours(other_entry.get("runtime_path")):
        return False
    try:
        program = policy.low_level([str(other_entry.get("runtime_path") or has.get("default_runtime"))])
        low = policy.low_level(policy.load(system.config_path())["runtime"]["low-level"])
    except GpushimError:
        return True
    is_same = os.path.realpath(program) == os.path.realpath(low)
    return not is_same or own_entry.get("runtime_root") != other_entry.get("runtime_root")


def why(used: dict[str, list[str]]) -> str:
    """Return what handlers are needed for, as a clause."""
    return f"CRI-O could neither end nor remove the containers of {_shown(used)} without {_named(used)} of gpushim's"


def stays(used: dict[str, list[str]]) -> dict[str, str]:
    """Return by the name of each handler that it stays, and how long."""
    until = "so that stays until a later run finds these pods deleted"
    return {name: f"{why({name: pods})}, {until}" for name, pods in used.items()}


def _named(names: Iterable[str]) -> str:
    return " and ".join(f"the handler {name}" if name else "the default handler" for name in names)


def _shown(used: dict[str, list[str]]) -> str:
    names = sorted(pod for handler_pods in used.values() for pod in handler_pods)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def pods(storage: str, must_exist: bool = False) -> dict[str, list[str]]:
    """List the pods that have containers, as NAMESPACE/NAME, by the name of their handler.

    Args:
        storage: absolute path of the directory where CRI-O keeps its containers.
        must_exist: it has to be there, as a CRI-O that runs has made it.

    Raises:
        GpushimError: it, or what is said of a container there, cannot be read.
    """
    handlers, names, used = {}, {}, set()
    for notes in _annotations(storage, must_exist):
        identity = notes.get(f"{_CRIO}SandboxID")
        if notes.get(f"{_CRIO}ContainerType") != "sandbox":
            used.add(identity)
            continue
        handlers[identity] = str(notes.get(f"{_CRIO}RuntimeHandler", DEFAULT))
        names[identity] = "/".join(quote(str(notes.get(f"{_POD}{part}"))) for part in ("namespace", "name"))
        if notes.get(_SPOOFED) != "true":
            used.add(identity)
    pods_by_handler: dict[str, list[str]] = {}
    for identity in used & handlers.keys():
        pods_by_handler.setdefault(handlers[identity], []).append(names[identity])
    return {handler: sorted(names_of_pods) for handler, names_of_pods in pods_by_handler.items()}


def _annotations(storage: str, must_exist: bool) -> list[dict[str, Any]]:
    """Return the annotations of each of CRI-O's containers; Podman's lie beside them."""
    folders = [f"{storage}/{name}" for name in _listed(storage, must_exist) if name.endswith("-containers")]
    paths = [f"{folder}/{name}/userdata/config.json" for folder in folders for name in _listed(folder)]
    return [notes for notes in map(_of, paths) if notes.get("io.container.manager") == "cri-o"]


def _listed(folder: str, must_exist: bool = False) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return []
        raise _unknown(folder, error.strerror) from None


def _of(path: str) -> dict[str, Any]:
    """Return the annotations of a container by its config.json; none where there is no such file."""
    late = time.monotonic() + WRITING
    while True:
        try:
            annotations = json.loads(mountinfo.read_proc(path, bounds.CONFIG_JSON)).get("annotations", {})
            if all(isinstance(value, str) for value in annotations.values()):
                return dict(annotations)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise _unknown(path, error.strerror) from None
        except (ValueError, AttributeError, RecursionError):
            pass
        if time.monotonic() > late:
            raise _unknown(path, "it is damaged")
        time.sleep(WRITING / 10)


def _unknown(path: str, reason: str | None) -> GpushimError:
    return GpushimError(f"{path} cannot be read, so it is unknown which handlers CRI-O needs: {reason}")
