"""Records, allocations and claims, as tests of the record need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.record import record_form
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.record_form import CONFIRMED
from gpushim.containers.kubelet import OWN_DRIVER
from unit.gpuplugin.snapshots import uuid

if TYPE_CHECKING:
    from gpuplugin.record.record_form import Allocation, Claim, ClaimDevice, Division, Record

GPU, ONE, TWO = "nvidia.com/gpu", uuid(0), uuid(1)
WHOLE, SLICED, MPS = ("", GPU), ("time-slicing", GPU), ("mps", "group")


def division(count: int = 1, kind: str = "", placement: str = "", group: str = "") -> Division:
    """Return how a device is given out: whole, or in so many parts."""
    share = {"kind": kind, "group": group} if kind else None
    return {
        "parts": {GPU: {"count": count, "numbered": count > 1, "share": share}},
        "owner": 1,
        "placement": placement,
    }


def allocation(device: str = ONE, sharing: tuple[str, str] = WHOLE, **more: Any) -> Allocation:
    row: Any = {
        "device": device,
        "placement": "",
        "sharing": [*sharing],
        "pod": "pod d/a",
        "uid": "u-a",
        "state": CONFIRMED,
        "since": 5.0,
    }
    result: Allocation = row | more
    return result


def claim(*devices: ClaimDevice, **more: Any) -> Claim:
    row: Any = {
        "driver": OWN_DRIVER,
        "namespace": "d",
        "name": "c",
        "devices": [*devices],
        "pods": ["u-c"],
        "sharing": [],
        "state": CONFIRMED,
        "since": 5.0,
    }
    result: Claim = row | more
    return result


def claim_device(device: str = ONE, gpu: str = "", placement: str = "", admin: bool = False) -> ClaimDevice:
    return {
        "request": "r",
        "device": device.lower(),
        "uuid": device,
        "admin": admin,
        "gpu": gpu or device,
        "placement": placement,
    }


def record(
    divisions: dict[str, Division] | None = None,
    allocations: dict[str, Allocation] | None = None,
    claims: dict[str, Claim] | None = None,
    **more: Any,
) -> Record:
    """Return a record of GPU ONE, and what else is said."""
    empty: Any = record_form.fresh("boot")
    row = {"divisions": divisions or {ONE: division()}, "allocations": allocations or {}}
    result: Record = empty | {"gpus": {ONE: row}, "claims": claims or {}, **more}
    return result


def save(row: Record) -> AllocationsFile:
    """Write a record; return its file."""
    file = AllocationsFile()
    file.prepare()
    with file.locked():
        file.write(row)
    return file
