"""The form of allocations.json: how each GPU is divided, which devices pods have of it, and which claims there are.

An allocation is a device of the device plugin that a container has; a claim has its devices from the DRA driver. Both
have a state:

    granted      it is in kubelet's answer, or about to be; kubelet has not shown yet who has it
    confirmed    kubelet lists who has it (pod-resources), or has the claim in its file
    unconfirmed  kubelet's checkpoint alone has it: an init container's, or a pod's that has ended
    lost         it has ended for kubelet, and is not free: a process of its pods is left, or what it shared

and end by being taken out of the record (transitions.py has the table). What is read is checked against the types
below, as they are.
Out of scope: the file and its lock (allocations_file.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional, TypedDict

from gpuplugin.settings.json_types import checker
from gpuplugin.settings.resources import Share


class Part(TypedDict):
    """What a resource has of a GPU or MIG instance: so many devices, with a number in their ids or without."""

    count: int
    numbered: bool
    share: Optional[dict[str, Any]]  # attributes of a Share; None of a device that is not shared


class Division(TypedDict):
    """How a GPU or MIG instance was given out last: in which resources, by which instance of the plugin."""

    parts: dict[str, Part]
    owner: int
    placement: str  # of a MIG instance: "GPU instance/compute instance"


class Allocation(TypedDict):
    """A device of the device plugin that a container has."""

    device: str  # UUID
    placement: str
    sharing: list[str]  # as changes.way_of has it
    pod: str  # "pod NAMESPACE/NAME" as soon as kubelet has listed it
    uid: str  # of the pod, as soon as kubelet's checkpoint has it
    state: str
    since: float  # seconds since boot


class Gpu(TypedDict):
    """Divisions by UUID of the GPU and its MIG instances; allocations by "RESOURCE ID"."""

    divisions: dict[str, Division]
    allocations: dict[str, Allocation]


class ClaimShare(TypedDict):
    """A claim's part of a device."""

    id: str  # as the scheduler has named it
    memory: int  # MiB
    of: int  # MiB of the device
    limited: bool  # whether its containers are limited to that
    threads: int  # percent
    group: str  # of the settings, whose MPS daemon its containers use, or ""


class _ClaimDeviceOptions(TypedDict, total=False):
    share: ClaimShare  # of a device that is the claim's in part


class ClaimDevice(_ClaimDeviceOptions):
    """A device of a claim; one that an administrator looks at is not the claim's alone."""

    request: str
    device: str  # its name in the ResourceSlice
    uuid: str
    admin: bool
    gpu: str  # UUID of the GPU that it is or is part of, "" if nobody knows that any more
    placement: str


class Claim(TypedDict):
    """A claim that has devices of this node."""

    driver: str
    namespace: str
    name: str
    devices: list[ClaimDevice]
    pods: list[str]  # uids of those that have it
    sharing: list[dict[str, Any]]  # groups, as mps.of_claims.describe returns them
    state: str
    since: float  # seconds since boot, of the boot that gave it; 0.0 if that is not known


class Record(TypedDict):
    """All of it."""

    form: int
    boot: str  # in which allocations were made
    generation: int  # how often a division has changed
    unknown: str  # why it may lack something that was given out, or ""
    kubelet: Optional[list[Any]]  # identity of its socket, seconds since boot at its first sight; None: not yet
    gpus: dict[str, Gpu]  # by UUID
    claims: dict[str, Claim]  # by uid; of another's driver by driver, namespace and name


Grants = Mapping[str, Mapping[str, Allocation]]  # by GPU, and resource and id
FORM = 1
GRANTED, CONFIRMED, UNCONFIRMED, LOST = STATES = ("granted", "confirmed", "unconfirmed", "lost")
MOST = 1 << 17  # devices of a resource


def fresh(boot: str, unknown: str = "") -> Record:
    """Return a record in which nobody has anything."""
    return {
        "form": FORM,
        "boot": boot,
        "generation": 0,
        "unknown": unknown,
        "kubelet": None,
        "gpus": {},
        "claims": {},
    }


def after_boot(record: Record, boot: str) -> Record:
    """Return the record in this boot: divisions and claims stand; what pods have again kubelet's checkpoint tells.

    What was made for a claim is not there any more, and has the name that it had before it was made.
    """
    if record["boot"] == boot:
        return record
    gpus: dict[str, Gpu] = {uuid: {**gpu, "allocations": {}} for uuid, gpu in record["gpus"].items()}
    claims: dict[str, Claim] = {
        uid: {**claim, "since": 0.0, "devices": [*map(_unmake, claim["devices"])]}
        for uid, claim in record["claims"].items()
    }
    return {**record, "boot": boot, "unknown": "", "kubelet": None, "gpus": gpus, "claims": claims}


def is_made(device: ClaimDevice) -> bool:
    """Return whether a device is made for its claim: a MIG instance that has its name from its GPU."""
    return device["device"].startswith(f"mig-{device['gpu'].lower().removeprefix('gpu-')}-")


def _unmake(device: ClaimDevice) -> ClaimDevice:
    return {**device, "uuid": f"MIG-{device['device'].removeprefix('mig-')}"} if is_made(device) else device


def recall(record: Record, memory: Record) -> Record:
    """Return a record with the allocations and claims of another, but not its divisions: they may have changed."""
    gpus: dict[str, Gpu] = {uuid: {**gpu, "divisions": {}} for uuid, gpu in memory["gpus"].items()}
    return {**record, "gpus": gpus, "claims": memory["claims"]}


def parse(record: Any, lines: list[bytes], boot: str) -> Record:
    """Return the record of a file.

    Args:
        record: its first line.
        lines: the others: Grants that were made since the first one was written.
        boot: this boot's id; what was granted in an earlier one has ended, and a loss of power may have torn it.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, RecursionError: it is none.
    """
    for line in lines if record["boot"] == boot else ():
        for gpu, allocations in json.loads(line).items():
            record["gpus"][gpu]["allocations"].update(allocations)
    if not checker(Record)(record):
        raise ValueError
    if record["kubelet"] is not None:
        identity, since = record["kubelet"]
        if not (checker(str)(identity) and checker(float)(since)):
            raise ValueError
    rows = [row for gpu in record["gpus"].values() for row in gpu["allocations"].values()]
    if not all(row["state"] in STATES for row in (*rows, *record["claims"].values())):
        raise ValueError
    if not all(len(row["sharing"]) == 2 for row in rows):
        raise ValueError
    divisions = (division for gpu in record["gpus"].values() for division in gpu["divisions"].values())
    for part in (part for division in divisions for part in division["parts"].values()):
        share = part["share"]
        if not 0 < part["count"] < MOST or not (share is None or checker(Share)(Share(**share).__dict__)):
            raise ValueError
    parsed: Record = record
    return parsed
