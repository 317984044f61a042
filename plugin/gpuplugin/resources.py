"""Snapshot to devices: which extended resources a node has, and which devices each of them has.

Knows nothing of kubelet's messages, so that another protocol can stand on it.
Out of scope: what the host has (gpushim.inventory), and what a container gets of a device (allocation.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpushim import selection
from gpushim.errors import CONFIG, INVENTORY, GpushimError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpushim.model import Gpu, MigInstance, Snapshot

PREFIX = "nvidia.com/"
WHOLE = PREFIX + "gpu"
LONGEST_NAME = 63  # characters, of a resource; the cluster's rule for label names
STRATEGIES = ("none", "single", "mixed")
ALL_IN_ONE = {"wsl": "all", "tegra": "tegra"}  # platforms whose GPUs are one device, and its id


@dataclass(frozen=True)
class Device:
    """What kubelet counts as one.

    Attributes:
        id: the device's UUID, with "::0", "::1" ... if it is given out several times.
        uuid: of the GPU or MIG instance, as NVML has it.
        index: its other name: 0, or 0:1 of a MIG instance.
        gpu: index of the GPU that it is, or is part of.
        numa: NUMA node of that GPU; -1 if it has none.
        nodes: its device nodes, below the device root.
        problem: why it cannot be handed out now, or "".
    """

    id: str
    uuid: str
    index: str
    gpu: int
    numa: int = -1
    nodes: tuple[str, ...] = ()
    problem: str = ""


def find(snapshot: Snapshot, strategy: str, excluded: Sequence[str], notes: list[str]) -> dict[str, list[Device]]:
    """List the resources of a node.

    Args:
        snapshot: of its inventory, without an error.
        strategy: what becomes of MIG instances, one of STRATEGIES.
        excluded: GPUs and MIG instances that are not given out, by index, UUID or PCI address.
        notes: gets a sentence for each device that is left out, and each entry of `excluded` that means none.

    Returns:
        the devices of each resource, by its name; in the order of indices.

    Raises:
        GpushimError: "single" is asked for, and the GPUs do not allow it; or an entry of `excluded` cannot be read.
    """
    if snapshot["platform"] in ALL_IN_ONE:
        name = ALL_IN_ONE[snapshot["platform"]]
        return {WHOLE: [Device(name, name, "all" if name == "all" else "0", 0)]} if snapshot["gpus"] else {}
    gpus, migs = _kept(snapshot, excluded, notes)
    notes += snapshot["missing"]
    if strategy == "single" and any(gpu["mig"] for gpu in gpus):
        _check_single(gpus, migs)
        return {WHOLE: [_instance(mig, gpus) for mig in migs]}
    whole = gpus if strategy != "mixed" else [gpu for gpu in gpus if not gpu["mig"]]
    found = {WHOLE: [_whole(gpu) for gpu in whole if _named(gpu, notes)]} if whole else {}
    for mig in migs if strategy == "mixed" else ():
        name = f"{PREFIX}mig-{mig['profile'].replace('+', '.')}"
        if mig["profile"].partition(".")[0].endswith("c"):  # 1c.3g.20gb: a part of a GPU instance
            notes.append(
                f"MIG instance {mig['uuid']} is left out: {mig['profile']} does not use all of its GPU instance"
            )
        else:
            found.setdefault(name, []).append(_instance(mig, gpus))
    return found


def replicated(devices: Sequence[Device], replicas: int) -> list[Device]:
    """Give each device out several times, under ids of their own."""
    return [replace(one, id=f"{one.uuid}::{number}") for one in devices for number in range(replicas)]


def _kept(snapshot: Snapshot, excluded: Sequence[str], notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    gpus = sorted(snapshot["gpus"], key=lambda gpu: gpu["index"])
    migs = sorted(snapshot["mig"], key=lambda mig: (mig["gpu"], mig["index"]))
    for text in excluded:
        items = selection.parse([text], ()) or []
        if not items or items[0][0] in ("all", "none", "cdi", "unknown"):
            raise GpushimError(
                f'exclude has "{text}", which names no device; write an index, a UUID or a PCI address', CONFIG
            )
        out = [one for item in items for one in selection.find(item, snapshot)]
        if not out:
            notes.append(f'exclude has "{text}", which this host does not have')
        gone = {one["index"] for one in out if "gi" not in one}
        gpus = [gpu for gpu in gpus if gpu not in out]
        migs = [mig for mig in migs if mig not in out and mig["gpu"] not in gone]
    return gpus, migs


def _check_single(gpus: Sequence[Gpu], migs: Sequence[MigInstance]) -> None:
    """Refuse what the strategy single cannot tell apart: all its devices have one name."""
    fix = "make the instances alike, leave GPUs out with exclude, or choose mig-strategy mixed"
    plain = [str(gpu["index"]) for gpu in gpus if not gpu["mig"]]
    if plain:
        raise GpushimError(
            f"mig-strategy is single, but GPU {', '.join(plain)} is not in MIG mode while others are; {fix}",
            INVENTORY,
        )
    empty = [str(gpu["index"]) for gpu in gpus if gpu["index"] not in {mig["gpu"] for mig in migs}]
    if empty:
        raise GpushimError(
            f"mig-strategy is single, but GPU {', '.join(empty)} has no MIG instance; {fix}", INVENTORY
        )
    profiles = sorted({mig["profile"] for mig in migs})
    if len(profiles) > 1:
        raise GpushimError(f"mig-strategy is single, but there are {' and '.join(profiles)}; {fix}", INVENTORY)


def _named(gpu: Gpu, notes: list[str]) -> bool:
    if not gpu["uuid"]:
        notes.append(f"GPU {gpu['index']} is left out: it has no UUID, for NVML does not tell it")
    return bool(gpu["uuid"])


def _whole(gpu: Gpu) -> Device:
    uuid = gpu["uuid"]
    return Device(uuid, uuid, str(gpu["index"]), gpu["index"], gpu["numa"], (gpu["node"],), gpu["problem"] or "")


def _instance(mig: MigInstance, gpus: Sequence[Gpu]) -> Device:
    parent = next(gpu for gpu in gpus if gpu["index"] == mig["gpu"])
    nodes = (parent["node"], *mig["nodes"])
    index = f"{mig['gpu']}:{mig['index']}"
    return Device(mig["uuid"], mig["uuid"], index, mig["gpu"], parent["numa"], nodes, parent["problem"] or "")


def by_id(devices: Sequence[Device]) -> Mapping[str, Device]:
    """Index devices by what kubelet calls them."""
    return {device.id: device for device in devices}
