"""Edits: the parts that a container gets, their reasons, and how they are put into an OCI spec.

`plan` makes the list; it is written into config.json (here), put into a created container, shown, or becomes a CDI
spec. Kinds and their values:

    "node"   {"path", "type", "major", "minor", "fileMode", "uid", "gid"}   linux.devices
    "rule"   (type, major, minor, access)                                   linux.resources.devices
    "mount"  {"destination", "source", "type", "options"}                   mounts
    "env"    (name, value)                                                  process.env
    "gid"    number                                                         process.user.additionalGids
    "hook"   {"path", "args", "env", "timeout"}                             hooks.prestart

None of these replaces an entry of the user or the engine. Foreign CDI specs have further kinds, which replace the
entry of the same path, as their specification demands (foreign_edits.py).

    "set-node"    as "node"; type c, b, u or p; without numbers if p        linux.devices
    "set-mount"   as "mount"; type and options may be absent                mounts
    "stage-hook"  (stage, hook)                                             hooks.<stage>
    "rdt"         {"closID", ...}                                           linux.intelRdt

A second time changes nothing, if no two edits have the same target: see `last_counts` of cdi/resolve.py.
On the create path: imports nothing but the errors and bundle.py. One class serves all kinds: to build ten costs a
start 0.05 ms.
"""

from __future__ import annotations

from gpushim.ground.errors import BUNDLE, GpushimError, quote
from gpushim.oci.bundle import member_at, objects_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

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
    """A part of a container; `why` are its reasons, which do not count for equality."""

    __slots__ = ("kind", "value", "why")

    def __init__(self, kind: str, value: Any, why: Sequence[str] = ()) -> None:
        self.kind, self.value, self.why = kind, value, why

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edit) and (self.kind, self.value) == (other.kind, other.value)

    def __repr__(self) -> str:
        return f"Edit({self.kind!r}, {self.value!r})"


def apply(edits: Sequence[Edit], spec: dict[str, Any]) -> bool:
    """Put edits into a parsed config.json, in place; return whether anything changed.

    Raises:
        GpushimError: the spec has a member of a wrong type where an edit belongs.
    """
    changed = False
    index: dict[Any, Any] = {}  # what hundreds of edits would look for, found once
    for edit in edits:
        kind, value = edit.kind, edit.value
        if kind in _MANY:
            changed |= _MANY[kind](spec, value, index)
        elif kind in _LAND:
            changed |= _LAND[kind](spec, value)
        else:
            from gpushim.oci import foreign_edits  # most containers name no device of such a spec

            changed |= foreign_edits.LAND[kind](spec, value)
            index = {}
    return changed


def edited(spec: dict[str, Any]) -> bool:
    """Return whether a parsed config.json has gpushim's hook, of gpushim-runtime or of a CDI spec of ours."""
    hooks = spec.get("hooks")
    stages = [hooks.get(stage) for stage in ("prestart", "createRuntime")] if isinstance(hooks, dict) else []
    entries = [entry for stage in stages if isinstance(stage, list) for entry in stage if isinstance(entry, dict)]
    return any(args[:1] in _VERBS and len(args) > 1 for args in map(hook_args, entries))


def hook_args(hook: Mapping[str, object]) -> list[Any]:
    """Return the verb and options of gpushim-hook in an entry of a list of hooks; [] for another hook."""
    args, path = hook.get("args"), str(hook.get("path"))
    if not isinstance(args, list):
        return []
    if path == SHELL and args[:2] == ["sh", "-c"] and len(args) > 3:
        path, args = str(args[3]), args[3:]
    return args[1:] if path.endswith("/" + HOOK_NAME) else []


def _node(spec: dict[str, Any], node: dict[str, Any], index: dict[str, Any]) -> bool:
    if "nodes" not in index:
        index["devices"] = objects_at(spec, "linux.devices")
        index["nodes"] = {str(device.get("path")): device for device in reversed(index["devices"])}
    device = index["nodes"].setdefault(node["path"], node)
    if device is node:
        index["devices"].append(node)
        return True
    if (device.get("major"), device.get("minor")) != (node["major"], node["minor"]):
        actual = quote(f"{device.get('major')}:{device.get('minor')}")
        raise GpushimError(
            f"config.json already has {node['path']}, as device {actual} instead of {node['major']}:{node['minor']};"
            " do not pass that node by hand",
            BUNDLE,
        )
    return False


def _rule(spec: dict[str, Any], rule: tuple[str, int, int, str], index: dict[Any, Any]) -> bool:
    """Append a rule that allows an access to a device, unless the rules allow it already."""
    kind, major, minor, access = rule
    entries = _find_rules(spec, kind, major, index)
    # Of our own rules, those for other devices say nothing about this one.
    own_rules = index.setdefault((kind, major, minor), [])
    if _is_allowed([*entries, *own_rules], *rule) if own_rules else _is_allowed_by_spec(entries, rule, index):
        return False
    own_rules.append({"allow": True, "type": kind, "major": major, "minor": minor, "access": access})
    index["rules"].append(own_rules[-1])
    return True


def _find_rules(spec: dict[str, Any], kind: str, major: int, index: dict[Any, Any]) -> Any:
    """Return the rules that config.json had for devices of a type and major number."""
    if (kind, major) not in index:
        index["rules"] = objects_at(spec, "linux.resources.devices")
        entries = [entry for entry in index["rules"] if entry.get("type") in (None, "", "a", kind)]
        index[kind, major] = [entry for entry in entries if entry.get("major") in (None, -1, major)]
    return index[kind, major]


def _is_allowed_by_spec(
    entries: list[dict[str, Any]], rule: tuple[str, int, int, str], index: dict[Any, Any]
) -> bool:
    """Return whether rules allow an access; where none has a minor number, the answer holds for all of them."""
    kind, major, _, access = rule
    allowed: bool | None = index.get((kind, major, access))
    if allowed is None:
        allowed = _is_allowed(entries, *rule)
        if all(entry.get("minor") in (None, -1) for entry in entries):
            index[kind, major, access] = allowed
    return allowed


def _is_allowed(rules: list[dict[str, Any]], kind: str, major: int, minor: int, access: str) -> bool:
    """Return whether rules allow an access to a device: the last matching rule decides (config-linux.md)."""
    allowed = False
    for rule in rules:
        fits = (
            rule.get("type") in (None, "", "a", kind)
            and rule.get("major") in (None, -1, major)
            and rule.get("minor") in (None, -1, minor)
        )
        letters = str(rule.get("access") or "rwm")
        if fits and rule.get("allow"):
            allowed = allowed or all(letter in letters for letter in access)
        elif fits and any(letter in letters for letter in access):
            allowed = False
    return allowed


def _mount(spec: dict[str, Any], mount: dict[str, Any], index: dict[str, Any]) -> bool:
    if "mounts" not in index:
        index["mounts"] = objects_at(spec, "mounts")
        index["destinations"] = {str(entry.get("destination")) for entry in index["mounts"]}
    if mount["destination"] in index["destinations"]:
        return False  # ours from the first time, or the user's own
    index["destinations"].add(mount["destination"])
    index["mounts"].append(mount)
    return True


def _env(spec: dict[str, Any], pair: tuple[str, str]) -> bool:
    env = member_at(spec, "process.env", [])
    prefix = pair[0] + "="
    positions = [i for i, entry in enumerate(env) if isinstance(entry, str) and entry.startswith(prefix)]
    entry = prefix + pair[1]
    if [env[i] for i in positions] == [entry]:
        return False
    for i in reversed(positions[1:]):
        del env[i]
    if positions:
        env[positions[0]] = entry
    else:
        env.append(entry)
    return True


def _gid(spec: dict[str, Any], gid: int) -> bool:
    gids = member_at(spec, "process.user.additionalGids", [])
    if gid in gids:
        return False
    gids.append(gid)
    return True


def _hook(spec: dict[str, Any], hook: dict[str, Any]) -> bool:
    changed = False
    for stage in ("createRuntime", "prestart"):
        if stage not in member_at(spec, "hooks", {}) and stage != "prestart":
            continue  # nothing to remove, and an empty list is no use
        hooks = objects_at(spec, "hooks." + stage)
        expected = [hook] if stage == "prestart" else []
        new = [entry for entry in hooks if entry in expected or not (_name(entry) in OTHER_HOOKS or _is_ours(entry))]
        new += [hook for hook in expected if hook not in new]
        if new != hooks:
            hooks[:] = new
            changed = True
    return changed


def _is_ours(hook: dict[str, Any]) -> bool:
    """Return whether a create, or an engine for `--gpus`, has put a hook there; a CDI spec's has no --rootfs."""
    return "--rootfs" in hook_args(hook) or (_name(hook) == HOOK_NAME and len(hook_args(hook)) < 2)


def _name(hook: dict[str, Any]) -> str:
    return str(hook.get("path")).rpartition("/")[2]


_MANY: dict[str, Callable[[dict[str, Any], Any, dict[str, Any]], bool]] = {
    "node": _node,
    "rule": _rule,
    "mount": _mount,
}
_LAND: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "env": _env,
    "gid": _gid,
    "hook": _hook,
}
