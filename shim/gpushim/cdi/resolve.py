"""CDI names to edits: the container edits of others' specs, after the CDI specification.

Where the specification is silent, containers get what the CDI library of Docker, containerd and Podman gives them,
with three exceptions: a device number that is no longer the host's is refused, a hook without an environment gets one
(it would else have the image's, CVE-2025-23266), and hooks of NVIDIA's tools run through gpushim's.
Hot path: imports only its siblings. Out of scope: spec files (specs.py), applying edits (gpushim.oci.edits).
"""

from __future__ import annotations

import posix

from gpushim.cdi import specs
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.oci.edits import HOOK_ENV, NODE_OPTIONS, Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from gpushim.oci.bundle import Bundle

SAFE_HOOK = "nvidia-cdi-hook"
INSIDE = "startContainer"  # the one stage whose hooks are files of the container
_KINDS = {0o060000: "b", 0o020000: "c", 0o010000: "p"}  # S_IFBLK, S_IFCHR, S_IFIFO


def edits(names: Sequence[str], directories: Sequence[str], bundle: Bundle) -> list[Edit]:
    """Return the edits of CDI devices.

    Args:
        names: qualified names, in the request's order.
        directories: of specs, as `specs.find` takes them.
        bundle: as `plan.plan` takes it; "userns" and "hook" matter.

    Returns:
        edits; those of a spec itself once, before those of its first device.

    Raises:
        GpushimError: REQUEST, for a device that is unknown or ambiguous; INVENTORY, when its spec cannot be
            followed on this host.
    """
    found: list[Edit] = []
    reasons: dict[str, list[str]] = {}  # of the edits that come with any device of a spec
    for name, (path, document, device) in zip(names, specs.find(names, directories)):
        why = [f"CDI device {name}"]
        if path not in reasons:
            reasons[path] = []
            found += _edits(path, document.get("containerEdits") or {}, bundle, reasons[path])
        reasons[path] += why
        found += _edits(path, device.get("containerEdits") or {}, bundle, why)
    return found


def _edits(path: str, given: dict[str, Any], bundle: Bundle, why: list[str]) -> list[Edit]:
    if given.get("netDevices"):
        raise GpushimError(
            f"{path} gives network devices, which runtimes of this host do not reliably move into containers; "
            "let the engine do that, or remove netDevices",
            INVENTORY,
        )
    found: list[tuple[str, Any]] = []
    for entry in given.get("env") or ():
        name, _, value = entry.partition("=")
        found.append(("env", (name, value)))
    for node in given.get("deviceNodes") or ():
        found += _node(path, node, bundle["userns"])
    found += [("set-mount", _mount(path, mount)) for mount in given.get("mounts") or ()]
    found += [("stage-hook", _hook(path, hook, bundle["hook"])) for hook in given.get("hooks") or ()]
    if given.get("intelRdt"):
        found.append(("rdt", _given(given["intelRdt"])))
    found += [("gid", gid) for gid in given.get("additionalGids") or () if gid]
    return [Edit(kind, value, why) for kind, value in found]


def _given(members: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None and (not names or key in names)}


def _node(spec: str, given: dict[str, Any], userns: bool) -> list[tuple[str, Any]]:
    host = given.get("hostPath") or given["path"]
    kind, major, minor, mode = _facts(spec, given, host)
    node = {"path": given["path"], "type": kind, "fileMode": mode, **_given(given, "fileMode", "uid", "gid")}
    if mode is None and "fileMode" not in given:
        del node["fileMode"]
    if kind != "p":
        node.update(major=major, minor=minor)
    if userns and host != given["path"]:
        # In a user namespace nobody can mknod, so runc would bind the host's node of the same path: another one.
        mount = {"destination": given["path"], "source": host, "type": "bind", "options": NODE_OPTIONS}
        found: list[tuple[str, Any]] = [("set-mount", mount)]
    else:
        found = [("set-node", node)]
    if kind != "p":
        access = given.get("permissions") or "rwm"
        found.append(("rule", ("b" if kind == "b" else "c", major, minor, access)))
    return found


def _facts(spec: str, given: dict[str, Any], host: str) -> tuple[str, int, int, int | None]:
    """Return type, numbers and mode of the host's node, which the spec must not contradict."""
    kind, major, minor = given.get("type"), given.get("major"), given.get("minor") or 0
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


def _mount(spec: str, given: dict[str, Any]) -> dict[str, Any]:
    options = list(given.get("options") or ())
    kind = given.get("type")
    bound = "bind" in options or "rbind" in options
    if not kind and not bound:
        options.append("rbind")  # engines would ask the kernel for a file system without a name
    if not kind or bound or kind == "bind":
        _exists(spec, given["hostPath"])
    mount = {"destination": given["containerPath"], "source": given["hostPath"], "options": options}
    if kind or not bound:
        mount["type"] = kind or "bind"
    return mount


def _hook(spec: str, given: dict[str, Any], ours: str) -> tuple[str, dict[str, Any]]:
    stage = given["hookName"]
    hook = _given(given, "path", "args", "timeout")
    hook["env"] = list(given.get("env") or HOOK_ENV)
    name = hook["path"].rpartition("/")[2]
    args = hook.get("args") or [name]
    if stage != INSIDE and (name == SAFE_HOOK or (name == "nvidia-ctk" and "hook" in args)):
        hook["path"] = ours.rpartition("/")[0] + "/" + SAFE_HOOK
        if name != SAFE_HOOK:
            hook["args"] = [SAFE_HOOK, *args[args.index("hook") + 1 :]]
    if stage != INSIDE:
        _exists(spec, hook["path"])
    return stage, hook


def _exists(spec: str, path: str) -> None:
    """Refuse a file that the host lacks; the runtime reports whatever else is wrong with it."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise GpushimError(
            f"{spec} needs {path}, which is not on this host; install it, or write the spec again", INVENTORY
        ) from None
    except OSError:
        pass  # behind a directory that this user may not enter
