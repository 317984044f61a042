"""Edits as plain data, and how they land in an OCI spec.

An edit is a pair (kind, value). The same list can be written into config.json (here), shown to people,
or become a CDI spec; what a container gets is decided in `plan` alone.

    ("node",  {"path", "type", "major", "minor", "fileMode", "uid", "gid"})   linux.devices
    ("rule",  (major, minor))                                                 linux.resources.devices
    ("mount", {"destination", "source", "type", "options"})                   mounts
    ("env",   (name, value))                                                  process.env
    ("gid",   number)                                                         process.user.additionalGids
    ("hook",  {"path", "args", "env", "timeout"})                             hooks.prestart

Each lands so that a second time changes nothing, and what the user or the engine put there stays.
On the create path: imports nothing. Out of scope: reading and writing the file.
"""

from __future__ import annotations

from gpushim.errors import BUNDLE, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

HOOK_NAME = "gpushim-hook"
# Hooks that would inject the GPUs once more: engines add them for `--gpus` or from a hooks.d directory.
OTHER_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def apply(edits: list[tuple[str, Any]], spec: dict[str, Any]) -> bool:
    """Put edits into a spec.

    Args:
        edits: pairs as the module's docstring says.
        spec: a parsed config.json; changed in place.

    Returns:
        whether anything changed.

    Raises:
        GpushimError: the spec has something of a wrong type where an edit belongs.
    """
    changed = False
    for kind, value in edits:
        changed |= _LAND[kind](spec, value)
    return changed


def _at(spec: dict[str, Any], path: str, empty: Any) -> Any:
    """Find a member by its dotted path, making it and its parents where they are absent or null."""
    where = spec
    *parents, last = path.split(".")
    for name in parents:
        if where.get(name) is None:
            where[name] = {}
        where = where[name]
        if not isinstance(where, dict):
            raise GpushimError(f"config.json: {name} (of {path}) is not an object", BUNDLE)
    if where.get(last) is None:
        where[last] = empty
    if type(where[last]) is not type(empty):
        raise GpushimError(f"config.json: {path} is not {'a list' if empty == [] else 'an object'}", BUNDLE)
    return where[last]


def _objects(spec: dict[str, Any], path: str) -> Any:
    found = _at(spec, path, [])
    if not all(isinstance(item, dict) for item in found):
        raise GpushimError(f"config.json: {path} has an entry that is not an object", BUNDLE)
    return found


def _node(spec: dict[str, Any], node: dict[str, Any]) -> bool:
    devices = _objects(spec, "linux.devices")
    for device in devices:
        if device.get("path") == node["path"]:
            if (device.get("major"), device.get("minor")) != (node["major"], node["minor"]):
                raise GpushimError(
                    f"config.json already has {node['path']}, as device {device.get('major')}:{device.get('minor')}"
                    f" instead of {node['major']}:{node['minor']}; do not pass that node by hand",
                    BUNDLE,
                )
            return False
    devices.append(node)
    return True


def _rule(spec: dict[str, Any], number: tuple[int, int]) -> bool:
    rules = _objects(spec, "linux.resources.devices")
    if _allowed(rules, *number):
        return False
    rules.append({"allow": True, "type": "c", "major": number[0], "minor": number[1], "access": "rw"})
    return True


def _allowed(rules: list[dict[str, Any]], major: int, minor: int) -> bool:
    """Say whether a character device may be read and written: the last rule that fits decides (config-linux.md)."""
    allowed = False
    for rule in rules:
        fits = (
            rule.get("type") in (None, "", "a", "c")
            and rule.get("major") in (None, -1, major)
            and rule.get("minor") in (None, -1, minor)
        )
        access = rule.get("access") or "rwm"
        if fits and rule.get("allow"):
            allowed = allowed or ("r" in access and "w" in access)
        elif fits and ("r" in access or "w" in access):
            allowed = False
    return allowed


def _mount(spec: dict[str, Any], mount: dict[str, Any]) -> bool:
    mounts = _objects(spec, "mounts")
    if any(other.get("destination") == mount["destination"] for other in mounts):
        return False  # ours from the first time, or the user's own, which the user meant
    mounts.append(mount)
    return True


def _env(spec: dict[str, Any], pair: tuple[str, str]) -> bool:
    env = _at(spec, "process.env", [])
    prefix = pair[0] + "="
    places = [i for i, entry in enumerate(env) if isinstance(entry, str) and entry.startswith(prefix)]
    entry = prefix + pair[1]
    if [env[i] for i in places] == [entry]:
        return False
    for i in reversed(places[1:]):
        del env[i]
    if places:
        env[places[0]] = entry
    else:
        env.append(entry)
    return True


def _gid(spec: dict[str, Any], gid: int) -> bool:
    gids = _at(spec, "process.user.additionalGids", [])
    if gid in gids:
        return False
    gids.append(gid)
    return True


def _hook(spec: dict[str, Any], hook: dict[str, Any]) -> bool:
    changed = False
    for stage in ("createRuntime", "prestart"):
        if stage not in _at(spec, "hooks", {}) and stage != "prestart":
            continue  # nothing to remove, and an empty list is no use
        hooks = _objects(spec, "hooks." + stage)
        new = [other for other in hooks if _name(other) not in (HOOK_NAME, *OTHER_HOOKS)]
        if stage == "prestart":
            new.append(hook)
        if new != hooks:
            hooks[:] = new
            changed = True
    return changed


def _name(hook: dict[str, Any]) -> str:
    return str(hook.get("path")).rpartition("/")[2]


_LAND: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "node": _node,
    "rule": _rule,
    "mount": _mount,
    "env": _env,
    "gid": _gid,
    "hook": _hook,
}
