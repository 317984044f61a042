"""Snapshot to devices: which extended resources a node has, and which devices each of them has.

Knows nothing of kubelet's messages, so that another protocol can stand on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError, quote
from gpushim.oci import device_names, selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushim.ground.model import Gpu, MigInstance, Snapshot

PREFIX = "nvidia.com/"
WHOLE = PREFIX + "gpu"
# Of a resource's name, 63 characters may be the cluster's. Fewer here: ".shared" may follow, and the key of an
# annotation, which has the same limit, has the name and more in it (allocation.ANNOTATION).
LONGEST_NAME = 45
NAME = re.compile("[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
GONE = "the host does not have it any more"
ALL_IN_ONE = {"wsl": "all", "tegra": "tegra"}  # platforms whose GPUs are one device, and its id


@dataclass(frozen=True)
class Share:
    """The settings of its group that count when a device is given out.

    Attributes:
        kind: sharing.TIME_SLICING or MPS.
        distinct: a container gets one replica of this GPU or MIG instance.
        single: a container that gets this gets no other replica.
        group: of MPS: name of its directory and unit.
        memory: MiB, what a client process of MPS may have, or a container by the kernel; None if no limit is known.
        threads: of MPS: percent, the same.
        sliced: the limits are below the daemon's, so that the container has to be told.
    """

    kind: str
    distinct: bool = False
    single: bool = False
    policy: str = ""
    group: str = ""
    memory: Optional[int] = None
    threads: Optional[int] = None
    sliced: bool = False


@dataclass(frozen=True)
class Device:
    """A device as kubelet counts it.

    Attributes:
        id: its UUID, with "::0", "::1" ... if it is given out several times.
        uuid: of the GPU or MIG instance, as NVML has it: what containers call it.
        index: its other name: 0, or 0:1 of a MIG instance.
        gpu: index of the GPU that it is, or is part of.
        numa: NUMA node of that GPU; -1 if it has none.
        nodes: its device nodes, below the device root.
        problem: why it cannot be handed out now, or "".
        share: the way in which its group of sharing gives it out; None if it is not shared.
        placement: of a MIG instance: its GPU instance and compute instance on that GPU.
    """

    id: str
    uuid: str
    index: str
    gpu: int
    numa: int = -1
    nodes: tuple[str, ...] = ()
    problem: str = ""
    share: Share | None = None
    placement: str = ""


def units(snapshot: Snapshot) -> dict[str, Device]:
    """Return a node's GPUs and MIG instances by UUID, however they are given out."""
    if snapshot["platform"] in ALL_IN_ONE:
        return {device.uuid: device for devices in _all_in_one(snapshot, (), []).values() for device in devices}
    gpus = {gpu["index"]: gpu for gpu in snapshot["gpus"]}
    migs = [_mig_device(mig, gpus[mig["gpu"]]) for mig in snapshot["mig"] if mig["gpu"] in gpus]
    return {device.uuid: device for device in (*(_gpu_device(gpu) for gpu in gpus.values() if gpu["uuid"]), *migs)}


def find(snapshot: Snapshot, strategy: str, excluded: Sequence[str], notes: list[str]) -> dict[str, list[Device]]:
    """Return the devices of each resource of a node, by its name; in the order of indices.

    Args:
        snapshot: of its inventory, without an error.
        strategy: what becomes of MIG instances, none, single or mixed.
        excluded: GPUs and MIG instances that are not given out, by index, UUID or PCI address.
        notes: gets a sentence for each device that is left out, and each entry of `excluded` that means none.

    Raises:
        GpushimError: the strategy is for MIG instances, and the host does not allow it; or an entry of `excluded`
            names no device.
    """
    if snapshot["platform"] in ALL_IN_ONE:
        return _all_in_one(snapshot, excluded, notes)
    if strategy != "none" and snapshot["source"] != "nvml":
        raise GpushimError(
            f"mig-strategy is {strategy}, but only NVML lists MIG instances, and it cannot be used; "
            "gpushim doctor says why",
            INVENTORY,
        )
    gpus, migs = included(snapshot, excluded, notes)
    notes += snapshot["missing"]
    parents = {gpu["index"]: gpu for gpu in gpus}
    if strategy == "single" and any(gpu["mig"] for gpu in gpus):
        check_single(gpus, migs, notes)
        return {WHOLE: [_mig_device(mig, parents[mig["gpu"]]) for mig in migs]} if migs else {}
    devices = [_gpu_device(gpu) for gpu in gpus if _is_whole(gpu, strategy, snapshot["mig"], notes)]
    resources = {WHOLE: devices} if devices else {}
    for mig in migs if strategy == "mixed" else ():
        name = name_of(mig, notes)
        if name:
            resources.setdefault(name, []).append(_mig_device(mig, parents[mig["gpu"]]))
    return resources


def _all_in_one(snapshot: Snapshot, excluded: Sequence[str], notes: list[str]) -> dict[str, list[Device]]:
    """Count all GPUs as one where containers get all of them or none."""
    name, gpus = ALL_IN_ONE[snapshot["platform"]], snapshot["gpus"]
    if excluded:
        notes.append("exclude does nothing here: containers get all of this host's GPUs or none")
    index = "all" if snapshot["platform"] == "wsl" else "0"
    problem = next((gpu["problem"] for gpu in gpus if gpu["problem"]), "")
    device = Device(name, "all", index, 0, nodes=(*snapshot["nodes"],), problem=problem)
    return {WHOLE: [device]} if gpus else {}


def name_of(mig: MigInstance, notes: list[str]) -> str:
    """Return the name of a MIG instance's resource; "" if it is left out."""
    profile = mig["profile"]
    name = "mig-" + profile.replace("+", ".")
    if is_partial(profile):
        reason = f"{profile} does not use all of its GPU instance; that is given out with mig-strategy single alone"
    elif not NAME.fullmatch(name) or len(PREFIX + name) > LONGEST_NAME:
        reason = f'its profile "{quote(profile)}" makes no name of a resource'
    else:
        return PREFIX + name
    notes.append(f"MIG instance {mig['uuid']} is left out: {reason}")
    return ""


def is_partial(profile: str) -> bool:
    """Return whether a MIG instance of this profile shares its GPU instance, and so its memory, as 1c.3g.20gb."""
    return profile.partition(".")[0].endswith("c")


def replicated(
    devices: Sequence[Device], replicas: int, share: Share | None = None, numbered: bool = False
) -> list[Device]:
    """Return the replicas of devices, under ids of their own.

    Args:
        devices: to be given out.
        replicas: how often; a device that is given out once keeps its id.
        numbered: even a device that is given out once gets a number: it is a part of a device.
    """
    if replicas == 1 and not numbered:
        return [replace(device, share=share) for device in devices]
    return [
        replace(device, id=f"{device.id}::{number}", share=share) for device in devices for number in range(replicas)
    ]


def included(snapshot: Snapshot, excluded: Sequence[str], notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    """Return GPUs and MIG instances that may be given out, in the order of indices; as for `find`."""
    gpus = sorted(snapshot["gpus"], key=lambda gpu: gpu["index"])
    migs = sorted(snapshot["mig"], key=lambda mig: (mig["gpu"], mig["index"]))
    notes += absent(snapshot, excluded)
    for excluded_items in _resolve_excluded(snapshot, excluded).values():
        gpus = [gpu for gpu in gpus if gpu not in excluded_items]
        migs = [mig for mig in migs if mig not in excluded_items]
    included = {gpu["index"] for gpu in gpus}
    return gpus, [mig for mig in migs if mig["gpu"] in included]


def list_excluded(snapshot: Snapshot, excluded: Sequence[str]) -> list[Gpu]:
    """Return the GPUs that entries name, as those of `exclude`."""
    gpus, _ = included(snapshot, excluded, [])
    return [gpu for gpu in snapshot["gpus"] if gpu not in gpus]


def absent(snapshot: Snapshot, excluded: Sequence[str]) -> list[str]:
    """Return a note for each entry of `exclude` that names no device of this host; as for `find`."""
    missing = [text for text, items in _resolve_excluded(snapshot, excluded).items() if not items]
    return [f'exclude or on-demand has "{quote(text)}", which this host does not have' for text in missing]


def left_out(snapshot: Snapshot, excluded: Sequence[str]) -> str:
    """Return a sentence about entries of `exclude` that leave something out here, or ""; as for `find`."""
    effective = [text for text, items in _resolve_excluded(snapshot, excluded).items() if items]
    if not effective or snapshot["platform"] in ALL_IN_ONE:
        return ""
    return f"left out by exclude or on-demand: {', '.join(effective)}"


def _resolve_excluded(snapshot: Snapshot, excluded: Sequence[str]) -> dict[str, list[Gpu | MigInstance]]:
    return {
        text: [device for item in _parse_excluded(text) for device in selection.find(item, snapshot)]
        for text in excluded
    }


def check_named(key: str, texts: Sequence[str]) -> None:
    """Refuse entries of a setting, `exclude` or `on-demand`, that name no device; as for `find`."""
    for text in texts:
        _parse_excluded(text, key)


def _parse_excluded(text: str, key: str = "exclude") -> list[device_names.Item]:
    try:
        items = device_names.parse([text], ()) or []
    except GpushimError:  # it speaks of a request
        items = []
    if not items or items[0][0] in (*device_names.WORDS, "cdi", "unknown"):
        raise GpushimError(
            f'{key} has "{quote(text)}", which names no device; write an index, a UUID or a PCI address', CONFIG
        )
    return items


def check_single(gpus: Sequence[Gpu], migs: Sequence[MigInstance], notes: list[str]) -> None:
    """Refuse devices that the strategy single cannot tell apart: all of them have one name."""
    fix = "make the instances alike, leave GPUs out with exclude, or choose mig-strategy mixed"
    divided = {mig["gpu"] for mig in migs}
    # A GPU that does not answer may be in MIG mode; it stands in nobody's way.
    sick = [gpu for gpu in gpus if gpu["problem"] and gpu["index"] not in divided]
    notes += [f"GPU {gpu['index']} is left out: its MIG instances are not known: {gpu['problem']}" for gpu in sick]
    plain = [str(gpu["index"]) for gpu in gpus if not gpu["mig"] and gpu not in sick]
    if plain:
        raise GpushimError(
            f"mig-strategy is single, but GPU {', '.join(plain)} is not in MIG mode while others are; {fix}",
            INVENTORY,
        )
    empty = [str(gpu["index"]) for gpu in gpus if gpu["index"] not in divided and gpu not in sick]
    if empty:
        raise GpushimError(
            f"mig-strategy is single, but GPU {', '.join(empty)} has no MIG instance; {fix}", INVENTORY
        )
    profiles = sorted({mig["profile"] for mig in migs})
    if len(profiles) > 1:
        raise GpushimError(f"mig-strategy is single, but there are {' and '.join(profiles)}; {fix}", INVENTORY)


def _is_whole(gpu: Gpu, strategy: str, migs: Sequence[MigInstance], notes: list[str]) -> bool:
    """Return whether a GPU is a device by itself; add to the notes what is odd about it."""
    label = f"GPU {gpu['index']}"
    if gpu["mig"] and strategy == "mixed":
        if all(mig["gpu"] != gpu["index"] for mig in migs):
            notes.append(f"{label} is in MIG mode and has no instance, so nothing of it is given out")
        return False
    if not gpu["uuid"]:
        notes.append(f"{label} is left out: it has no UUID, because NVML does not report it")
    elif gpu["mig"]:
        notes.append(
            f"{label} is in MIG mode and given out as a whole, in which CUDA finds no device; choose mig-strategy "
            "single or mixed, or leave it out with exclude"
        )
    return bool(gpu["uuid"])


def _gpu_device(gpu: Gpu) -> Device:
    uuid = gpu["uuid"]
    return Device(uuid, uuid, str(gpu["index"]), gpu["index"], gpu["numa"], (gpu["node"],), gpu["problem"] or "")


def _mig_device(mig: MigInstance, parent: Gpu) -> Device:
    nodes = (parent["node"], *mig["nodes"])
    index = f"{mig['gpu']}:{mig['index']}"
    placement, problem = f"{mig['gi']}/{mig['ci']}", parent["problem"] or ""
    return Device(mig["uuid"], mig["uuid"], index, mig["gpu"], parent["numa"], nodes, problem, placement=placement)
