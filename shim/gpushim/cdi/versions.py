"""The versions of the CDI specification, by the features that need them: its table "Released versions"."""

from __future__ import annotations

from typing import Any

KNOWN = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def required(spec: dict[str, Any]) -> tuple[str, str]:
    """Return the lowest version that allows all of a valid spec, and the feature that needs it ("" for none)."""
    devices = spec.get("devices") or []
    edits = [holder.get("containerEdits") or {} for holder in (spec, *devices)]
    category = str(spec.get("kind")).partition("/")[2]
    rdts = [edit["intelRdt"] for edit in edits if edit.get("intelRdt")]
    needs = (
        ("1.1.0", "netDevices", any(edit.get("netDevices") for edit in edits)),
        ("1.1.0", "intelRdt's schemata", any(rdt.get("schemata") for rdt in rdts)),
        ("1.1.0", "intelRdt's enableMonitoring", any(rdt.get("enableMonitoring") for rdt in rdts)),
        ("0.7.0", "additionalGids", any(edit.get("additionalGids") for edit in edits)),
        ("0.7.0", "intelRdt", bool(rdts)),
        ("0.6.0", "annotations", any(holder.get("annotations") for holder in (spec, *devices))),
        ("0.6.0", "a class with a dot", "." in category),
        (
            "0.5.0",
            "a device name without a letter at its beginning",
            any(str(device.get("name"))[:1] not in _LETTERS for device in devices),
        ),
        ("0.5.0", "a node's hostPath", any(node.get("hostPath") for node in _members(edits, "deviceNodes"))),
        ("0.4.0", "a mount's type", any(mount.get("type") for mount in _members(edits, "mounts"))),
    )
    return next(((version, feature) for version, feature, used in needs if used), (KNOWN[0], ""))


def number(version: str) -> tuple[int, ...]:
    """Return a version as comparable numbers, () if it is none."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else ()


def _members(edits: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [member for edit in edits for member in edit.get(key) or []]
