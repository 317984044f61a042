"""Which devices are given out several times: the section sharing of NVIDIA's file.

Out of scope: replicas themselves (resources.py), and which of them comes first (preferred.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuplugin.resources import PREFIX
from gpushim.errors import CONFIG, GpushimError, quote

MOST = 1000  # replicas of a device; kubelet takes 60 000 devices of a resource
SLICING = "sharing.timeSlicing"
_SWITCHES = ("renameByDefault", "failRequestsGreaterThanOne")
_NOT_DONE = ("rename", "devices")  # keys of a resource, which NVIDIA's plugin reads and does not follow either


@dataclass
class Sharing:
    """What is shared.

    Attributes:
        replicas: how many times devices are given out, by name of the resource.
        renamed: resources with replicas are called NAME.shared.
        single: a container may ask for one replica only.
    """

    replicas: dict[str, int] = field(default_factory=dict)
    renamed: bool = False
    single: bool = False


def read(section: Any, path: str, notes: list[str]) -> Sharing:
    """Read what NVIDIA's file says of sharing.

    Args:
        section: as parsed; None says nothing.
        path: the file's name in messages.
        notes: gets a sentence for each thing that does nothing.

    Raises:
        GpushimError: something has a wrong form.
    """
    section = _table(section, path, "sharing")
    notes += [f"{path}: sharing.{quote(key)} means nothing" for key in section if key not in ("timeSlicing", "mps")]
    if section.get("mps"):
        notes.append(f"{path}: sharing.mps is read and does nothing: MPS is not offered")
    slicing = _table(section.get("timeSlicing"), path, SLICING)
    known = ("resources", *_SWITCHES)
    notes += [f"{path}: {SLICING}.{quote(key)} means nothing" for key in slicing if key not in known]
    renamed, single = (_switch(slicing, key, path) for key in _SWITCHES)
    rows = slicing.get("resources")
    if not isinstance(rows, (list, type(None))):
        raise GpushimError(f"{path}: {SLICING}.resources is no list", CONFIG)
    found = [_resource(row, path, notes) for row in rows or ()]
    replicas = dict(found)
    if len(replicas) < len(found):
        raise GpushimError(f"{path}: {SLICING}.resources has a resource twice", CONFIG)
    return Sharing(replicas, renamed, single)


def _resource(row: Any, path: str, notes: list[str]) -> tuple[str, int]:
    row = _table(row, path, f"an entry of {SLICING}.resources")
    name, replicas = row.get("name"), row.get("replicas")
    if not isinstance(name, str) or not name:
        raise GpushimError(f"{path}: an entry of {SLICING}.resources has no name", CONFIG)
    if type(replicas) is not int or not 2 <= replicas <= MOST:
        raise GpushimError(
            f"{path}: replicas of {quote(name)} is {quote(str(replicas))}, not a number between 2 and {MOST}; leave "
            "the entry out where nothing is shared",
            CONFIG,
        )
    notes += [
        f"{path}: {key} of {quote(name)} is read and does nothing, as in NVIDIA's plugin"
        for key in _NOT_DONE
        if row.get(key)
    ]
    return name if "/" in name else PREFIX + name, replicas


def _table(value: Any, path: str, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise GpushimError(f"{path}: {name} is no mapping of YAML or JSON", CONFIG)
    return value


def _switch(slicing: dict[str, Any], key: str, path: str) -> bool:
    value = slicing.get(key)
    if not isinstance(value, (bool, type(None))):
        raise GpushimError(f"{path}: {SLICING}.{key} is {quote(str(value))}, not true or false", CONFIG)
    return value is True
