"""The keys of a CDI spec and the form of their values, after the CDI specification up to 1.1.

As in the CDI library, an unknown key makes the whole spec invalid: it may be what makes the device safe. Null is
absent, as Go reads it. Hot path: imports nothing but its siblings.
"""

from __future__ import annotations

from gpushim.ground.errors import quote
from gpushim.oci.device_names import is_qualified, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    Rule = Callable[[Any], None]

VERSIONS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "1.0", "1.1")
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_LAST = 2**32 - 1


class FormError(Exception):
    """What is wrong with a spec: `predicate` follows the member's path, "" while that is unknown."""

    def __init__(self, predicate: str, path: str = "") -> None:
        super().__init__(predicate)
        self.predicate, self.path = predicate, path

    def __str__(self) -> str:
        return f"{self.path or 'it'} {self.predicate}"

    def below(self, key: str) -> FormError:
        between = "." if self.path and not self.path.startswith("[") else ""
        return FormError(self.predicate, key + between + self.path)


def check(document: object) -> None:
    """Check a parsed spec.

    Raises:
        FormError: a key is unknown, or a value is not what the specification allows there.
    """
    spec = _object(document, _SPEC)
    for key in ("cdiVersion", "kind", "devices"):
        if spec.get(key) is None:
            raise FormError(f"has no {key}")
    version = spec["cdiVersion"].split(".")
    if len(version) != 3 or ".".join(version[:2]) not in VERSIONS or number(version[2]) < 0:
        raise FormError(
            f'has the cdiVersion "{quote(spec["cdiVersion"])}"; {VERSIONS[0]} to {VERSIONS[-1]} are known'
        )
    if not is_qualified(spec["kind"] + "=x"):
        raise FormError(f'has the kind "{quote(spec["kind"])}", which is not vendor/class')
    names = [device["name"] for device in spec["devices"]]
    if not names:
        raise FormError("has no devices")
    for name in names:
        if not is_qualified("v/c=" + name):
            raise FormError(f'has a device named "{quote(name)}", which is not a valid CDI device name')
    if len(set(names)) != len(names):
        raise FormError("has two devices of the same name")


def _object(value: object, rules: Mapping[str, Rule]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormError("is not an object")
    for key, member in value.items():
        rule = rules.get(key)
        if rule is None:
            raise FormError(f'has "{quote(str(key))}", which is unknown here')
        if member is not None:
            try:
                rule(member)
            except FormError as error:
                raise error.below(key) from None
    return value


def _is_object(rules: Mapping[str, Rule], *required: str) -> Rule:
    def rule(value: Any) -> None:
        _object(value, rules)
        for key in required:
            if value.get(key) in (None, ""):
                raise FormError(f"has no {key}")

    return rule


def _is_list(member: Rule) -> Rule:
    def rule(value: Any) -> None:
        if not isinstance(value, list):
            raise FormError("is not a list")
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007 - for the message
                member(item)
        except FormError as error:
            raise error.below(f"[{index}]") from None

    return rule


def _is_text(value: Any) -> bool:
    """Return whether the kernel can take a value: no NUL, and no half of a surrogate pair, which JSON can spell."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _text(value: Any) -> None:
    if not _is_text(value):
        raise FormError("is not a string")


def _path(value: Any) -> None:
    if not _is_text(value) or not value.startswith("/"):
        raise FormError(f'is "{quote(str(value))}", which is not an absolute path')


def _variable(value: Any) -> None:
    if not _is_text(value) or value.find("=") < 1:
        raise FormError(f'is "{quote(str(value))}", not NAME=value')


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise FormError("is neither true nor false")


def _number(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LAST:
        raise FormError(f"is not a number from 0 to {_LAST}")


def _one_of(*allowed: str) -> Rule:
    def rule(value: Any) -> None:
        if value not in allowed:
            raise FormError(f'is "{quote(str(value))}", not one of {", ".join(allowed)}')

    return rule


def _access(value: Any) -> None:
    if not isinstance(value, str) or value.strip("rwm"):
        raise FormError(f'is "{quote(str(value))}", but may have the letters r, w and m')


def _annotations(value: Any) -> None:
    if not isinstance(value, dict):
        raise FormError("is not an object")


def _mount(value: Any) -> None:
    _IS_MOUNT(value)
    # Without a type it is a bind mount, and its source a path: runc would take a relative one from the bundle.
    if value.get("type") in (None, "", "bind", "none") and not value["hostPath"].startswith("/"):
        raise FormError(f'has the hostPath "{quote(value["hostPath"])}", which is not an absolute path')


_NODE = {
    "path": _path,
    "hostPath": _path,
    "type": _one_of("b", "c", "u", "p"),
    "major": _number,
    "minor": _number,
    "fileMode": _number,
    "permissions": _access,
    "uid": _number,
    "gid": _number,
}
_IS_MOUNT = _is_object(
    {"hostPath": _text, "containerPath": _path, "type": _text, "options": _is_list(_text)},
    "hostPath",
    "containerPath",
)
_HOOK = {
    "hookName": _one_of(*STAGES),
    "path": _path,
    "args": _is_list(_text),
    "env": _is_list(_variable),
    "timeout": _number,
}
_RDT = {
    "closID": _text,
    "l3CacheSchema": _text,
    "memBwSchema": _text,
    "enableCMT": _flag,
    "enableMBM": _flag,
    "schemata": _is_list(_text),
    "enableMonitoring": _flag,
}
_EDITS = {
    "env": _is_list(_variable),
    "deviceNodes": _is_list(_is_object(_NODE, "path")),
    "mounts": _is_list(_mount),
    "hooks": _is_list(_is_object(_HOOK, "hookName", "path")),
    "intelRdt": _is_object(_RDT),
    "additionalGids": _is_list(_number),
    "netDevices": _is_list(_is_object({"hostInterfaceName": _text, "name": _text}, "hostInterfaceName", "name")),
}
_DEVICE = {"name": _text, "annotations": _annotations, "containerEdits": _is_object(_EDITS)}
_SPEC = {
    "cdiVersion": _text,
    "kind": _text,
    "annotations": _annotations,
    "devices": _is_list(_is_object(_DEVICE, "name")),
    "containerEdits": _is_object(_EDITS),
}
