"""What is wrong with a CDI spec: by schema.json, and by the rules that a schema cannot express.

Stricter than form.py, which decides whether a spec is used here: this is for authors of specs for any engine.
Out of scope: files (the command line).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from gpushim.cdi import form, versions
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.oci.selection import is_qualified

ERROR, WARNING = "error", "warning"
Finding = tuple[str, str]  # ERROR or WARNING, sentence
_VENDOR_LENGTH, _CLASS_LENGTH = 253, 63  # CDI specification, section "Kind"


def schema() -> dict[str, Any]:
    """Read the JSON schema of a spec."""
    with open(os.path.join(os.path.dirname(__file__), "schema.json"), encoding="utf-8") as file:
        parsed: dict[str, Any] = json.load(file)
    return parsed


def findings(spec: object) -> list[Finding]:
    """List what is wrong with a parsed spec, errors first; more may show once its form is right.

    Raises:
        GpushimError: jsonschema is missing.
    """
    found = [(ERROR, sentence) for sentence in _by_schema(spec)]
    if not found and isinstance(spec, dict):
        found = [*_about_version(spec), *_about_names(spec)]
        for where, edits in _edits(spec):
            if where != "containerEdits" and not any(edits.values()):
                found.append((ERROR, f"{where}: it edits nothing, and engines refuse a spec with such a device"))
            found += [(level, f"{where}: {sentence}") for level, sentence in _about_edits(edits)]
    if not any(level == ERROR for level, _ in found):
        found += _by_form(spec)
    return sorted(found, key=lambda finding: finding[0])


def _by_schema(spec: object) -> Iterator[str]:
    try:
        import jsonschema
    except ImportError:
        raise GpushimError(
            "validating needs jsonschema, which is not installed; install it (python3-jsonschema of Debian and "
            "Fedora, or gpushim[validate] of pip)",
            FAILED,
        ) from None
    checker = jsonschema.Draft7Validator(schema())
    for error in sorted(checker.iter_errors(spec), key=lambda error: [str(part) for part in error.absolute_path]):
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        yield f"{where.lstrip('.') or 'the spec'}: {error.message[:200]}"


def _by_form(spec: object) -> Iterator[Finding]:
    """Ask form.py, which refuses strings that a schema cannot describe, such as half a surrogate pair in a path."""
    try:
        form.check(spec)
    except form.FormError as error:
        yield ERROR, str(error)


def _about_version(spec: dict[str, Any]) -> Iterator[Finding]:
    version = spec["cdiVersion"]
    if version not in versions.KNOWN:
        yield ERROR, f'cdiVersion "{quote(version)}" is none of {", ".join(versions.KNOWN)}'
        return
    needed, what = versions.required(spec)
    if versions.number(version) < versions.number(needed):
        yield ERROR, f"cdiVersion is {version}, but {what} needs at least {needed}: engines refuse the spec"
    elif needed != version:
        yield WARNING, f"cdiVersion is {version}, but {needed} would do, which more engines can read"


def _about_names(spec: dict[str, Any]) -> Iterator[Finding]:
    kind = spec["kind"]
    vendor, _, category = kind.partition("/")
    if not is_qualified(kind + "=x"):
        yield ERROR, f'kind "{quote(kind)}" is not vendor/class of letters, digits, "_", "-" and "."'
    elif len(vendor) > _VENDOR_LENGTH or len(category) > _CLASS_LENGTH:
        yield WARNING, f"kind is longer than {_VENDOR_LENGTH} characters of vendor or {_CLASS_LENGTH} of class"
    seen = set()
    for device in spec["devices"]:
        name = device["name"]
        if not is_qualified("v/c=" + name):
            yield ERROR, f'the device name "{quote(name)}" is not of letters, digits, "_", "-", "." and ":"'
        if name in seen:
            yield ERROR, f'two devices are named "{quote(name)}"'
        seen.add(name)


def _edits(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "containerEdits", spec.get("containerEdits", {})
    for device in spec["devices"]:
        yield f'device "{quote(device["name"])}"', device["containerEdits"]


def _about_edits(edits: dict[str, Any]) -> Iterator[Finding]:
    for entry in edits.get("env", ()):
        if entry.find("=") < 1:
            yield ERROR, f'env has "{quote(entry)}", which is not NAME=value'
    yield from _about_paths(edits)
    for hook in edits.get("hooks", ()):
        for entry in hook.get("env", ()):
            if entry.find("=") < 1:
                yield ERROR, f'the hook {quote(hook["path"])} has "{quote(entry)}" in env, which is not NAME=value'
    for path in bare_hooks(edits):
        yield WARNING, f"the hook {quote(path)} has no env, and may run with the image's (CVE-2025-23266)"
    if 0 in edits.get("additionalGids", ()):
        yield WARNING, "additionalGids has 0, which engines ignore"


def bare_hooks(edits: dict[str, Any]) -> list[str]:
    """List the paths of hooks without an environment, which some runtimes give that of the container's process."""
    return [hook["path"] for hook in edits.get("hooks") or () if not hook.get("env")]


def _about_paths(edits: dict[str, Any]) -> Iterator[Finding]:
    places = (("deviceNodes", "path"), ("deviceNodes", "hostPath"), ("mounts", "containerPath"), ("hooks", "path"))
    for key, member in places:
        for item in edits.get(key, ()):
            if not item.get(member, "/").startswith("/"):
                yield ERROR, f"{key} has the {member} {quote(item[member])}, which is not absolute"
    for mount in edits.get("mounts", ()):
        if mount.get("type", "") in ("", "none", "bind") and not mount["hostPath"].startswith("/"):
            yield ERROR, f"mounts has the hostPath {quote(mount['hostPath'])}, which is not absolute"
    for key, member in (("deviceNodes", "path"), ("mounts", "containerPath")):
        paths = [item[member] for item in edits.get(key, ())]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield WARNING, f"{key} has {quote(path)} more than once, and only one of them counts"
