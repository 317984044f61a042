"""Move the paths of a CDI spec from below one directory to below another.

For a spec that was written in a container, where the host is mounted at /host, or for a driver that is elsewhere.
A path is below a directory only at a "/": /host2 is not below /host.
Out of scope: reading and writing specs (text.py).
"""

from __future__ import annotations

import posixpath
from typing import Any, Callable, Optional

from gpushim.cdi import versions
from gpushim.edits import HOOK_NAME

Move = Callable[[str], str]

HOST, CONTAINER = "host", "container"
# Options of our own hook with paths: a function of how to move host paths and container paths in the value.
_OURS: dict[str, Callable[[str, Move, Move], str]] = {
    "--lib": lambda value, host, container: _library(value, container),
    "--lib32": lambda value, host, container: _library(value, container),
    "--link": lambda value, host, container: _halves(value, container, container),
    "--node-link": lambda value, host, container: _halves(value, container, container),
    "--cover": lambda value, host, container: _halves(value, host, container),
    "--empty": lambda value, host, container: host(value),
    "--log": lambda value, host, container: host(value),
}


def root(spec: dict[str, Any], old: str, new: str, where: str) -> None:
    """Move paths.

    Args:
        spec: as form.check lets it pass; changed in place.
        old: absolute path of the directory that paths are below now.
        new: absolute path of the directory they shall be below.
        where: HOST, for what engines and hooks open on the host; CONTAINER, for what containers see.
    """
    old, new = (posixpath.normpath("/" + path.lstrip("/")) for path in (old, new))
    if old == new:
        return

    def move(path: str) -> str:
        return moved(path, old, new)

    def stay(path: str) -> str:
        return path

    host, container = (move, stay) if where == HOST else (stay, move)
    for holder in (spec, *spec["devices"]):
        edits = holder.get("containerEdits") or {}
        for node in edits.get("deviceNodes") or ():
            _node(node, host, container)
        for mount in edits.get("mounts") or ():
            mount["hostPath"] = host(mount["hostPath"])
            mount["containerPath"] = container(mount["containerPath"])
        for hook in edits.get("hooks") or ():
            hook["path"] = host(hook["path"])
            if hook.get("args"):
                hook["args"] = _arguments(hook["args"], host, container)
    needed, _ = versions.required(spec)
    if versions.number(spec["cdiVersion"]) < versions.number(needed):
        spec["cdiVersion"] = needed  # a hostPath that was not there before needs 0.5.0


def moved(path: str, old: str, new: str) -> str:
    """Return where a path is when `old` is called `new`; both normal and absolute."""
    if path == old:
        return new
    top = old.rstrip("/") + "/"
    return new.rstrip("/") + "/" + path[len(top) :] if path.startswith(top) else path


def _node(node: dict[str, Any], host: Move, container: Move) -> None:
    source = host(node.get("hostPath") or node["path"])
    path = container(node["path"])
    if node.get("hostPath") or source != path:
        node["hostPath"] = source
    node["path"] = path


def _arguments(args: list[str], host: Move, container: Move) -> list[str]:
    """Move paths among a hook's arguments: of others' hooks, they are the container's."""
    ours = args[0].rpartition("/")[2] == HOOK_NAME
    found: list[str] = []
    option: Optional[Callable[[str, Move, Move], str]] = None
    for word in args:
        if not ours:
            found.append(_halves(word, container, container))
        else:
            found.append(option(word, host, container) if option else word)
            option = None if option else _OURS.get(word)
    return found


def _halves(word: str, left: Move, right: Move) -> str:
    first, colons, second = word.partition("::")
    return left(first) + colons + (right(second) if colons else "")


def _library(word: str, move: Move) -> str:
    soname, sign, places = word.partition("=")
    return soname + sign + _halves(places, move, move)
