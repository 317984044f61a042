"""A bundle that is created again, and whose config.json somebody has changed since: what was added is taken out.

Engines write config.json again for each container. A unit with `ExecStart=gpushim-runtime run` starts the same bundle
at each boot, with other GPUs on the host, another request, or none. So a create keeps what the engine wrote beside
its own result (bundle.saved). Where config.json still is that result, the next create starts from what was kept.
Where it is not, this module finds in the two what the first create has added, and takes out that alone. Where nothing
usable is kept, or not for this config.json, it takes out all that a plan could have written.

A create is known by what neither engines nor CDI specs of ours write: our hook with the path of a rootfs; or, by what
was kept, by all the rules that it has added. Without either nothing is touched: a node that is there may have been
passed by hand, and mounts may be those of a CDI spec.

Out of scope: reading and writing files. Not on the create path of most containers.
"""

from __future__ import annotations

from gpushim.ground import fastjson
from gpushim.ground.errors import GpushimError
from gpushim.oci.device_list import NODES
from gpushim.oci.edits import FILE_OPTIONS, NODE_OPTIONS, hook_args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# Lists to which a create adds entries, and of which it replaces some: variables, and what a CDI spec has replaced.
# What is no list, a CDI spec has replaced as a whole.
_PLACES = (
    "linux.intelRdt",
    "mounts",
    "linux.devices",
    "linux.resources.devices",
    "process.env",
    "process.user.additionalGids",
    "hooks.prestart",
    "hooks.createRuntime",
    "hooks.createContainer",
    "hooks.startContainer",
    "hooks.poststart",
    "hooks.poststop",
)
_RULES = "linux.resources.devices"
_OUR_STAGES = ("hooks.prestart", "hooks.createRuntime")
_NVIDIA = 195  # major number, on every Linux


def without(data: bytes, ours: bytes, before: bytes) -> bytes:
    """Return config.json without what an earlier create has put into it.

    Args:
        data: what it says now.
        ours: what that create has written; b"" if that is not known.
        before: what was there before.

    Returns:
        `data` itself, if nothing of that create's is in it: the engine has written it again.
    """
    spec, had, has = (_parsed(one) for one in (data, before, ours))
    if not _marked(spec, had, has):
        return data
    for path in _PLACES:
        _take_out(spec, had, has, path.split("."))
    if _marked(spec, had, has):
        _take_out_possible(spec, had)
    return fastjson.dumps(spec).encode("ascii")


def _parsed(data: bytes) -> Any:
    try:
        return fastjson.loads(data, "config.json")
    except GpushimError:
        return None


def _marked(spec: Any, had: Any, has: Any) -> bool:
    """Say whether a create has been here."""
    if any(_creates(hook) for stage in _OUR_STAGES for hook in _entries(spec, stage)):
        return True
    there, old = _entries(spec, _RULES), _entries(had, _RULES)
    added = [rule for rule in _entries(has, _RULES) if _is_rule(rule) and rule not in old]
    return bool(added) and all(rule in there for rule in added)


def _creates(hook: Any) -> bool:
    """Tell the hook of a create; one of a CDI spec knows no rootfs."""
    return isinstance(hook, dict) and "--rootfs" in hook_args(hook)


def _entries(spec: Any, path: str) -> list[dict[str, Any]]:
    for name in path.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return [entry for entry in spec if isinstance(entry, dict)] if isinstance(spec, list) else []


def _take_out_possible(spec: Any, had: Any) -> None:
    """Take out all that a plan could have written and that was not there before, as far as that is known.

    A node is one of a plan's only with a rule as plans write them: engines let a node that is passed by hand be made,
    too ("rwm"). What a plan has replaced is not known.
    """
    allowed = {_numbers(rule) for rule in _entries(spec, _RULES) if _is_rule(rule)}
    old, nodes = _entries(had, "linux.devices"), _entries(spec, "linux.devices")
    nodes = [node for node in nodes if str(node.get("path")).startswith(NODES) and _numbers(node) in allowed]
    nodes = [node for node in nodes if node not in old]
    taken = {_numbers(node) for node in nodes}
    gids = [node.get("gid") for node in nodes if node.get("fileMode") not in (0o666, 0o777) and node.get("gid")]
    about: dict[str, Callable[[Any], bool]] = {
        "linux.devices": lambda entry: entry in nodes,
        _RULES: lambda entry: _is_rule(entry) and (_numbers(entry) in taken or entry["major"] == _NVIDIA),
        "mounts": _is_mount,
        "process.user.additionalGids": lambda entry: entry in gids,
        **dict.fromkeys(_OUR_STAGES, _creates),
    }
    for path, possible in about.items():
        _drop(spec, had, path.split("."), possible)


def _numbers(entry: dict[str, Any]) -> tuple[int, int]:
    major, minor = entry.get("major"), entry.get("minor")
    return (major, minor) if isinstance(major, int) and isinstance(minor, int) else (-1, -1)


def _is_rule(rule: Any) -> bool:
    if not isinstance(rule, dict) or -1 in _numbers(rule):
        return False
    return rule == {"allow": True, "type": "c", "major": rule["major"], "minor": rule["minor"], "access": "rw"}


def _is_mount(mount: Any) -> bool:
    if not isinstance(mount, dict) or mount.get("type") != "bind":
        return False
    place, source, options = str(mount.get("destination")), str(mount.get("source")), mount.get("options")
    if options == NODE_OPTIONS and not place.startswith(NODES):
        return False
    return source.endswith(place) and options in (FILE_OPTIONS, NODE_OPTIONS)


def _drop(spec: Any, had: Any, path: list[str], possible: Callable[[Any], bool]) -> None:
    """Leave out of a list what is possible and was not there before, and what is empty then."""
    name = path[0]
    here = spec.get(name) if isinstance(spec, dict) else None
    old = had.get(name) if isinstance(had, dict) else None
    if not here:
        return
    if len(path) > 1:
        _drop(here, old, path[1:], possible)
    elif isinstance(here, list):
        old = old if isinstance(old, list) else []
        spec[name] = [entry for entry in here if entry in old or not possible(entry)]
    if not spec[name]:
        del spec[name]


def _take_out(spec: Any, had: Any, has: Any, path: list[str]) -> None:
    """Take out of a place what was added, put back what that has replaced; leave out what was not there."""
    name = path[0]
    if not isinstance(spec, dict) or name not in spec:
        return
    old = had.get(name) if isinstance(had, dict) else None
    new = has.get(name) if isinstance(has, dict) else None
    if len(path) > 1:
        _take_out(spec[name], old, new, path[1:])
    elif spec[name] == new:
        spec[name] = type(new)() if old is None else old
    elif isinstance(spec[name], list) and isinstance(new, list):
        spec[name] = _parted(spec[name], old if isinstance(old, list) else [], new)
    if spec[name] in ([], {}) and old is None and new:
        del spec[name]


def _parted(entries: list[Any], old: list[Any], new: list[Any]) -> list[Any]:
    """Return what is left of a list that somebody has changed since."""
    left = [entry for entry in entries if entry in old or entry not in new]
    if len(left) == len(entries):
        return entries
    # Behind the one that it came behind; the first, before the one that came behind it.
    place = next((left.index(entry) for entry in old if entry in left), len(left))
    for entry in old:
        if entry not in new and entry not in left:
            left.insert(place, entry)
        place = left.index(entry) + 1 if entry in left else place
    return left
