"""Edits: what a container gets, why, and how it is put into an OCI spec.

The same list can be written into config.json (here), put into a created container, shown to people, or become a CDI
spec; what a container gets is decided in `plan` alone. Kinds and their values:

    "node"   {"path", "type", "major", "minor", "fileMode", "uid", "gid"}   linux.devices
    "rule"   (type, major, minor, access)                                   linux.resources.devices
    "mount"  {"destination", "source", "type", "options"}                   mounts
    "env"    (name, value)                                                  process.env
    "gid"    number                                                         process.user.additionalGids
    "hook"   {"path", "args", "env", "timeout"}                             hooks.prestart

None of these replaces what the user or the engine put there. CDI specs of others have further kinds, which replace
what is there under the same path, as their specification demands.

    "set-node"    as "node"; type c, b, u or p; without numbers if p        linux.devices
    "set-mount"   as "mount"; type and options may be absent                mounts
    "stage-hook"  (stage, hook)                                             hooks.<stage>
    "rdt"         {"closID", ...}                                           linux.intelRdt

A second time changes nothing, if no two edits are about the same thing: see `last_counts`.
On the create path: imports nothing but the errors. One class serves all kinds: to build ten costs a start 0.05 ms.
Out of scope: reading and writing the file.
"""

from __future__ import annotations

from gpushim.ground.errors import BUNDLE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional, Sequence

HOOK_NAME = "gpushim-hook"
SHELL = "/bin/sh"  # of our hook, where a child of the create is to do its work (gpushim.create.ahead)
# Hooks that would inject the GPUs once more: engines add them for `--gpus` or from a hooks.d directory.
OTHER_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
# runc and crun replace a hook's environment by this one; without it an image's could get in (CVE-2025-23266).
HOOK_ENV = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
_VERBS = (["prestart"], ["createRuntime"])  # of our hook, in a spec

# Options of the mount of a file of the driver or a directory of one of its services, and of a device node.
FILE_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
# With ro, too, nodes can be opened for writing; but root in a container cannot change their owner and mode, which are
# the host's and all other containers'.
NODE_OPTIONS = ["ro", "nosuid", "noexec", "rbind", "rprivate"]


class Edit:
    """One thing that a container gets.

    Args:
        kind: as the module's docstring says.
        value: of that kind.
        why: reasons, each in a few words; two edits are equal whatever their reasons.
    """

    __slots__ = ("kind", "value", "why")

    def __init__(self, kind: str, value: Any, why: Sequence[str] = ()) -> None:
        self.kind, self.value, self.why = kind, value, why

    def __eq__(self, other: object) -> bool:
        """Compare what the container gets."""
        return isinstance(other, Edit) and (self.kind, self.value) == (other.kind, other.value)

    def __repr__(self) -> str:
        """Tell kind and value: the same for equal edits."""
        return f"Edit({self.kind!r}, {self.value!r})"


def apply(edits: Sequence[Edit], spec: dict[str, Any]) -> bool:
    """Put edits into a parsed config.json, in place; returns whether anything changed.

    Raises:
        GpushimError: the spec has something of a wrong type where an edit belongs.
    """
    changed = False
    here: dict[Any, Any] = {}  # what hundreds of edits would look for, found once
    for edit in edits:
        kind, value = edit.kind, edit.value
        if kind in _MANY:
            changed |= _MANY[kind](spec, value, here)
        else:
            changed |= _LAND[kind](spec, value)
            here = {} if kind.startswith("set-") else here
    return changed


def edited(spec: dict[str, Any]) -> bool:
    """Say whether a hook of ours does the rest: gpushim-runtime put it there, or a CDI spec of ours.

    Args:
        spec: a parsed config.json.
    """
    hooks = spec.get("hooks")
    stages = [hooks.get(stage) for stage in ("prestart", "createRuntime")] if isinstance(hooks, dict) else []
    entries = [entry for stage in stages if isinstance(stage, list) for entry in stage if isinstance(entry, dict)]
    return any(args[:1] in _VERBS and len(args) > 1 for args in map(hook_args, entries))


def hook_args(hook: Mapping[str, object]) -> list[Any]:
    """Return what a hook gives gpushim-hook: the verb and its options; [] of another's.

    Args:
        hook: an entry of a list of hooks.
    """
    args, path = hook.get("args"), str(hook.get("path"))
    if not isinstance(args, list):
        return []
    if path == SHELL and args[:2] == ["sh", "-c"] and len(args) > 3:
        path, args = str(args[3]), args[3:]
    return args[1:] if path.endswith("/" + HOOK_NAME) else []


def last_counts(edits: Sequence[Edit]) -> list[Edit]:
    """Leave out edits that a later one makes void: the same variable, node, destination, or intelRdt again."""
    places: dict[Any, int] = {}
    for number, edit in enumerate(edits):
        about = _about(edit) or number
        if about in places and edits[places[about]] == edit:
            edit.why = [*edits[places[about]].why, *edit.why]
        places[about] = number
    return [edits[number] for number in sorted(places.values())]


def _about(edit: Edit) -> Optional[tuple[str, str]]:
    kind, value = edit.kind, edit.value
    if kind in ("node", "set-node"):
        return "node", value["path"]
    if kind in ("mount", "set-mount"):
        return "mount", value["destination"]
    if kind in ("env", "rdt"):
        return kind, value[0] if kind == "env" else ""
    return None  # of two that are equal, only the first will land


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
    if not {*map(type, found)} <= {dict}:
        raise GpushimError(f"config.json: {path} has an entry that is not an object", BUNDLE)
    return found


def _node(spec: dict[str, Any], node: dict[str, Any], here: dict[str, Any]) -> bool:
    if "nodes" not in here:
        here["devices"] = _objects(spec, "linux.devices")
        here["nodes"] = {str(device.get("path")): device for device in reversed(here["devices"])}
    device = here["nodes"].setdefault(node["path"], node)
    if device is node:
        here["devices"].append(node)
        return True
    if (device.get("major"), device.get("minor")) != (node["major"], node["minor"]):
        other = quote(f"{device.get('major')}:{device.get('minor')}")
        raise GpushimError(
            f"config.json already has {node['path']}, as device {other} instead of {node['major']}:{node['minor']};"
            " do not pass that node by hand",
            BUNDLE,
        )
    return False


def _set_node(spec: dict[str, Any], node: dict[str, Any]) -> bool:
    """Replace any node of that path; without an owner, it belongs to the container's user, as with engines."""
    process = spec.get("process")
    user = process.get("user") if isinstance(process, dict) else None
    if isinstance(user, dict):
        node = {**{key: user[key] for key in ("uid", "gid") if user.get(key)}, **node}
    devices = _objects(spec, "linux.devices")
    same = [device for device in devices if device.get("path") == node["path"]]
    numbers = ("type", "major", "minor")
    if len(same) == 1 and [same[0].get(key) for key in numbers] == [node.get(key) for key in numbers]:
        return False
    devices[:] = [device for device in devices if device not in same] + [node]
    return True


def _rule(spec: dict[str, Any], rule: tuple[str, int, int, str], here: dict[Any, Any]) -> bool:
    kind, major, minor, access = rule
    if (kind, major) not in here:
        here["rules"] = _objects(spec, "linux.resources.devices")
        about = [one for one in here["rules"] if one.get("type") in (None, "", "a", kind)]
        here[kind, major] = [one for one in about if one.get("major") in (None, -1, major)]
    # Of ours, those about other devices say nothing about this one.
    ours = here.setdefault((kind, major, minor), [])
    allowed = None if ours else here.get((kind, major, access))
    if allowed is None:
        allowed = _allowed([*here[kind, major], *ours], *rule)
        if not ours and all(one.get("minor") in (None, -1) for one in here[kind, major]):
            here[kind, major, access] = allowed  # of each minor number alike
    if allowed:
        return False
    ours.append({"allow": True, "type": kind, "major": major, "minor": minor, "access": access})
    here["rules"].append(ours[-1])
    return True


def _allowed(rules: list[dict[str, Any]], kind: str, major: int, minor: int, access: str) -> bool:
    """Say whether a device may be used so: the last matching rule decides (config-linux.md)."""
    allowed = False
    for rule in rules:
        fits = (
            rule.get("type") in (None, "", "a", kind)
            and rule.get("major") in (None, -1, major)
            and rule.get("minor") in (None, -1, minor)
        )
        its = str(rule.get("access") or "rwm")
        if fits and rule.get("allow"):
            allowed = allowed or all(letter in its for letter in access)
        elif fits and any(letter in its for letter in access):
            allowed = False
    return allowed


def _mount(spec: dict[str, Any], mount: dict[str, Any], here: dict[str, Any]) -> bool:
    if "mounts" not in here:
        here["mounts"] = _objects(spec, "mounts")
        here["destinations"] = {str(other.get("destination")) for other in here["mounts"]}
    if mount["destination"] in here["destinations"]:
        return False  # ours from the first time, or the user's own, which the user meant
    here["destinations"].add(mount["destination"])
    here["mounts"].append(mount)
    return True


def _set_mount(spec: dict[str, Any], mount: dict[str, Any]) -> bool:
    """Put a mount in the place of the one with the same destination, else where it hides no other.

    The CDI library sorts all mounts by depth then. What that is for is done here alone: a new mount goes before
    the first that lies below it. The order of the others was the user's or the engine's, and stays.
    """
    mounts = _objects(spec, "mounts")
    paths = [str(other.get("destination")) for other in mounts]
    if mount["destination"] in paths:
        place = (
            len(paths) - 1 - paths[::-1].index(mount["destination"])
        )  # of several, the last is the one that is seen
        changed = bool(mounts[place] != mount)
        mounts[place] = mount
        return changed
    top = mount["destination"].rstrip("/") + "/"
    # A spec has dozens of mounts and nearly always this answer, which one search in one string gives.
    below = "\n" + top in "\n" + "\n".join(paths) and [n for n, path in enumerate(paths) if path.startswith(top)]
    mounts.insert(below[0] if below else len(mounts), mount)
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
        here = [hook] if stage == "prestart" else []
        new = [other for other in hooks if other in here or not (_name(other) in OTHER_HOOKS or _is_ours(other))]
        new += [hook for hook in here if hook not in new]
        if new != hooks:
            hooks[:] = new
            changed = True
    return changed


def _is_ours(hook: dict[str, Any]) -> bool:
    """Tell a hook that a create, or an engine for `--gpus`, has put there; one of a CDI spec knows no rootfs."""
    return "--rootfs" in hook_args(hook) or (_name(hook) == HOOK_NAME and len(hook_args(hook)) < 2)


def _stage_hook(spec: dict[str, Any], pair: tuple[str, dict[str, Any]]) -> bool:
    stage, hook = pair
    hooks = _objects(spec, "hooks." + stage)
    if hook in hooks:
        return False
    hooks.append(hook)
    return True


def _name(hook: dict[str, Any]) -> str:
    return str(hook.get("path")).rpartition("/")[2]


def _rdt(spec: dict[str, Any], rdt: dict[str, Any]) -> bool:
    linux = _at(spec, "linux", {})
    changed = linux.get("intelRdt") != rdt
    linux["intelRdt"] = rdt
    return bool(changed)


_MANY: dict[str, Callable[[dict[str, Any], Any, dict[str, Any]], bool]] = {
    "node": _node,
    "rule": _rule,
    "mount": _mount,
}
_LAND: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "env": _env,
    "gid": _gid,
    "hook": _hook,
    "set-node": _set_node,
    "set-mount": _set_mount,
    "stage-hook": _stage_hook,
    "rdt": _rdt,
}
