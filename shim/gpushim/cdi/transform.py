"""Move the paths of a CDI spec from one directory to another.

For a spec that was written in a container that has the host at /host, or for a driver in another directory.
"""

from __future__ import annotations

import posixpath
from typing import Any, Callable

from gpushim.cdi import versions
from gpushim.oci.edits import HOOK_NAME
from gpushim.oci.hookargs import CONTAINER, FORMS, HOST, OPTIONS

Move = Callable[[str], str]


def root(spec: dict[str, Any], old: str, new: str, side: str) -> None:
    """Move a spec's paths from one absolute directory to another, in place; /host2 is not below /host.

    `side` is HOST, for paths that engines and hooks open on the host, or CONTAINER, for those in containers.
    """
    old, new = (posixpath.normpath("/" + path.lstrip("/")) for path in (old, new))
    if old == new:
        return

    def move(path: str) -> str:
        return moved(path, old, new)

    def stay(path: str) -> str:
        return path

    host, container = (move, stay) if side == HOST else (stay, move)
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
    required, _ = versions.required(spec)
    if versions.number(spec["cdiVersion"]) < versions.number(required):
        spec["cdiVersion"] = required  # a new hostPath needs 0.5.0


def moved(path: str, old: str, new: str) -> str:
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
    """Return a hook's arguments with their paths moved; those of other programs' hooks are the container's."""
    if args[0].rpartition("/")[2] != HOOK_NAME:
        return [_parts(word, [container, container]) for word in args]
    moves = {HOST: host, CONTAINER: container}
    moved_args: list[str] = []
    form = ""  # of this word, if it is an option's value
    for word in args:
        before, sign, value = word.partition("=") if "=" in form else ("", "", word)
        moved_args.append(before + sign + _parts(value, [moves[side] for side in FORMS.get(form, ())]))
        form = "" if form else OPTIONS.get(word, ("",))[0]
    return moved_args


def _parts(value: str, moves: list[Move]) -> str:
    texts = value.split("::", max(len(moves) - 1, 0))
    return "::".join([move(text) for move, text in zip(moves, texts)] or texts)
