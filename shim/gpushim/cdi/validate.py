"""Findings about a CDI spec: by schema.json, and by the rules that a schema cannot express.

Stricter than form.py, which decides whether a spec is used here: this is for authors of specs for any engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from gpushim.cdi import form, versions
from gpushim.ground.errors import FAILED, GpushimError, quote

ERROR, WARNING = "error", "warning"
Finding = tuple[str, str]  # ERROR or WARNING, sentence
_VENDOR_LENGTH, _CLASS_LENGTH = 253, 63  # CDI specification, section "Kind"


def schema() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "schema.json"), encoding="utf-8") as file:
        parsed: dict[str, Any] = json.load(file)
    return parsed


def findings(spec: object) -> list[Finding]:
    """List the findings about a parsed spec, errors first; more may show once its form is right.

    Raises:
        GpushimError: jsonschema is missing.
    """
    results = [(ERROR, sentence) for sentence in _by_schema(spec)]
    if not results and isinstance(spec, dict):
        results = [*_about_version(spec), *_about_names(spec)]
        for owner, edits in _edits(spec):
            if owner != "containerEdits" and not any(edits.values()):
                results.append((ERROR, f"{owner}: it edits nothing, and engines refuse a spec with such a device"))
            results += [(level, f"{owner}: {sentence}") for level, sentence in _about_edits(edits)]
    if not any(level == ERROR for level, _ in results):
        results += _by_form(spec)
    return sorted(results, key=lambda finding: finding[0])


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
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        about = error.schema.get("description") if error.validator == "pattern" else None
        message = f"{error.instance!r} {about}" if about else error.message
        yield f"{path.lstrip('.') or 'the spec'}: {message[:200]}"


def _by_form(spec: object) -> Iterator[Finding]:
    try:
        form.check(spec)
    except form.FormError as error:
        yield ERROR, str(error)


def _about_version(spec: dict[str, Any]) -> Iterator[Finding]:
    version = spec["cdiVersion"]
    if version not in versions.KNOWN:
        yield ERROR, f'cdiVersion "{quote(version)}" is none of {", ".join(versions.KNOWN)}'
        return
    required, feature = versions.required(spec)
    if versions.number(version) < versions.number(required):
        yield ERROR, f"cdiVersion is {version}, but {feature} needs at least {required}: engines refuse the spec"
    elif required != version:
        yield WARNING, f"cdiVersion is {version}, but {required} would do, which more engines can read"


def _about_names(spec: dict[str, Any]) -> Iterator[Finding]:
    kind = spec["kind"]
    vendor, _, category = kind.partition("/")
    if len(vendor) > _VENDOR_LENGTH or len(category) > _CLASS_LENGTH:
        yield WARNING, f"kind is longer than {_VENDOR_LENGTH} characters of vendor or {_CLASS_LENGTH} of class"


def _edits(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "containerEdits", spec.get("containerEdits", {})
    for device in spec["devices"]:
        yield f'device "{quote(device["name"])}"', device["containerEdits"]


def _about_edits(edits: dict[str, Any]) -> Iterator[Finding]:
    for path in bare_hooks(edits):
        yield WARNING, f"the hook {quote(path)} has no env, and may run with the image's (CVE-2025-23266)"
    for key, member in (("deviceNodes", "path"), ("mounts", "containerPath")):
        paths = [item[member] for item in edits.get(key, ())]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield WARNING, f"{key} has {quote(path)} more than once, and only one takes effect"
    if 0 in edits.get("additionalGids", ()):
        yield WARNING, "additionalGids has 0, which engines ignore"


def bare_hooks(edits: dict[str, Any]) -> list[str]:
    """List the paths of hooks without an environment, which some runtimes give that of the container's process."""
    return [hook["path"] for hook in edits.get("hooks") or () if not hook.get("env")]
