"""CDI names to edits: the container edits of foreign specs, after the CDI specification.

Where the specification is silent, containers get what the CDI library of Docker, containerd and Podman gives them,
with three exceptions: a device number that is no longer the host's is refused, a hook without an environment gets one
(it would else have the image's, CVE-2025-23266), and hooks of NVIDIA's tools run through gpushim's.
Hot path: imports only its siblings.
"""

from __future__ import annotations

import posix

from gpushim.cdi import specs
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.oci.edits import HOOK_ENV, NODE_OPTIONS, Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Sequence

    from gpushim.oci.bundle import Bundle

SAFE_HOOK = "nvidia-cdi-hook"
INSIDE = "startContainer"  # the one stage whose hooks are files of the container
_KINDS = {0o060000: "b", 0o020000: "c", 0o010000: "p"}  # S_IFBLK, S_IFCHR, S_IFIFO


def edits(names: Sequence[str], directories: Sequence[str], bundle: Bundle) -> list[Edit]:
    """Return the edits of CDI devices, those of a spec itself once, before those of its first device.

    Args:
        names: qualified names, in the request's order.
        directories: of specs, as `specs.find` takes them.
        bundle: as `plan.plan` takes it; "userns" and "hook" matter.

    Raises:
        GpushimError: REQUEST, for a device that is unknown or ambiguous; INVENTORY, when its spec cannot be
            followed on this host.
    """
    planned: list[Edit] = []
    reasons: dict[str, list[str]] = {}  # of the edits that come with any device of a spec
    for name, (path, document, device) in zip(names, specs.find(names, directories)):
        device_reasons = [f"CDI device {name}"]
        if path not in reasons:
            reasons[path] = []
            planned += _edits(path, document.get("containerEdits") or {}, bundle, reasons[path])
        reasons[path] += device_reasons
        planned += _edits(path, device.get("containerEdits") or {}, bundle, device_reasons)
    return planned


def last_counts(edits: Sequence[Edit]) -> list[Edit]:
    """Return edits without those that a later one replaces: of the same variable, node, destination or intelRdt."""
    numbers: dict[Any, int] = {}
    for number, edit in enumerate(edits):
        about = _about(edit) or number
        if about in numbers and edits[numbers[about]] == edit:
            edit.why = [*edits[numbers[about]].why, *edit.why]
        numbers[about] = number
    return [edits[number] for number in sorted(numbers.values())]


def _about(edit: Edit) -> Optional[tuple[str, str]]:
    kind, value = edit.kind, edit.value
    if kind in ("node", "set-node"):
        return "node", value["path"]
    if kind in ("mount", "set-mount"):
        return "mount", value["destination"]
    if kind in ("env", "rdt"):
        return kind, value[0] if kind == "env" else ""
    return None  # of two that are equal, only the first will land


def _edits(path: str, members: dict[str, Any], bundle: Bundle, reasons: list[str]) -> list[Edit]:
    if members.get("netDevices"):
        raise GpushimError(
            f"{path} gives network devices, which runtimes of this host do not reliably move into containers; "
            "let the engine do that, or remove netDevices",
            INVENTORY,
        )
    pairs: list[tuple[str, Any]] = []
    for entry in members.get("env") or ():
        name, _, value = entry.partition("=")
        pairs.append(("env", (name, value)))
    for node in members.get("deviceNodes") or ():
        pairs += _node(path, node, bundle["userns"])
    pairs += [("set-mount", _mount(path, mount)) for mount in members.get("mounts") or ()]
    pairs += [("stage-hook", _hook(path, hook, bundle["hook"])) for hook in members.get("hooks") or ()]
    if members.get("intelRdt"):
        pairs.append(("rdt", _present_members(members["intelRdt"])))
    pairs += [("gid", gid) for gid in members.get("additionalGids") or () if gid]
    return [Edit(kind, value, reasons) for kind, value in pairs]


def _present_members(members: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None and (not names or key in names)}


def _node(spec: str, entry: dict[str, Any], userns: bool) -> list[tuple[str, Any]]:
    host = entry.get("hostPath") or entry["path"]
    kind, major, minor, mode = _facts(spec, entry, host)
    node = {
        "path": entry["path"],
        "type": kind,
        "fileMode": mode,
        **_present_members(entry, "fileMode", "uid", "gid"),
    }
    if mode is None and "fileMode" not in entry:
        del node["fileMode"]
    if kind != "p":
        node.update(major=major, minor=minor)
    if userns and host != entry["path"]:
        # In a user namespace mknod fails, so runc would bind the host's node of the same path: another one.
        mount = {"destination": entry["path"], "source": host, "type": "bind", "options": NODE_OPTIONS}
        pairs: list[tuple[str, Any]] = [("set-mount", mount)]
    else:
        pairs = [("set-node", node)]
    if kind != "p":
        access = entry.get("permissions") or "rwm"
        pairs.append(("rule", ("b" if kind == "b" else "c", major, minor, access)))
    return pairs


def _facts(spec: str, entry: dict[str, Any], host: str) -> tuple[str, int, int, int | None]:
    """Return type, numbers and mode of the host's node, which the spec must not contradict."""
    kind, major, minor = entry.get("type"), entry.get("major"), entry.get("minor") or 0
    try:
        status = posix.lstat(host)
    except OSError as error:
        if kind == "p" or (kind and major):
            return kind, major or 0, minor, None
        raise GpushimError(
            f"{spec} needs the device node {host}, which cannot be used ({error.strerror}); is the device's driver "
            "loaded, and is the spec up to date?",
            INVENTORY,
        ) from None
    real = _KINDS.get(status.st_mode & 0o170000)
    if real is None or (kind and real != ("c" if kind == "u" else kind)):
        raise GpushimError(
            f"{spec} needs the device node {host}, which is not one of type {kind or 'b, c or p'} on this host",
            INVENTORY,
        )
    numbers = (posix.major(status.st_rdev), posix.minor(status.st_rdev))
    if real != "p" and major and (major, minor) != numbers:
        raise GpushimError(
            f"{spec} says that {host} is the device {major}:{minor}, but it is {numbers[0]}:{numbers[1]}; "
            "the spec is out of date, write it again",
            INVENTORY,
        )
    return kind or real, *numbers, status.st_mode & 0o7777


def _mount(spec: str, entry: dict[str, Any]) -> dict[str, Any]:
    options = list(entry.get("options") or ())
    kind = entry.get("type")
    bound = "bind" in options or "rbind" in options
    if not kind and not bound:
        options.append("rbind")  # engines would ask the kernel for a file system without a name
    if not kind or bound or kind == "bind":
        _require_file(spec, entry["hostPath"])
    mount = {"destination": entry["containerPath"], "source": entry["hostPath"], "options": options}
    if kind or not bound:
        mount["type"] = kind or "bind"
    return mount


def _hook(spec: str, entry: dict[str, Any], gpushim_hook: str) -> tuple[str, dict[str, Any]]:
    stage = entry["hookName"]
    hook = _present_members(entry, "path", "args", "timeout")
    hook["env"] = list(entry.get("env") or HOOK_ENV)
    name = hook["path"].rpartition("/")[2]
    args = hook.get("args") or [name]
    if stage != INSIDE and (name == SAFE_HOOK or (name == "nvidia-ctk" and "hook" in args)):
        hook["path"] = gpushim_hook.rpartition("/")[0] + "/" + SAFE_HOOK
        if name != SAFE_HOOK:
            hook["args"] = [SAFE_HOOK, *args[args.index("hook") + 1 :]]
    if stage != INSIDE:
        _require_file(spec, hook["path"])
    return stage, hook


def _require_file(spec: str, path: str) -> None:
    """Raise for a file that the host lacks; the runtime reports any other trouble with it."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise GpushimError(
            f"{spec} needs {path}, which is not on this host; install it, or write the spec again", INVENTORY
        ) from None
    except OSError:
        pass  # behind a directory that this user may not enter
