"""Groups of sharing on a host: which devices each has, and what becomes of them.

Out of scope: how groups are written (sharing.py), which devices there are (resources.py), MPS daemons (mps.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.settings import resources
from gpuplugin.settings.resources import ALL_IN_ONE, Device, Share
from gpuplugin.settings.sharing import MPS, TIME_SLICING, Group, Mps, Slice
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.oci import selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Gpu, Snapshot

    There = dict[str, list[Device]]  # a host's devices, by resource
    Members = list[tuple[Group, list[Device]]]

CLIENTS, CLIENTS_BEFORE, TURING = 48, 16, (7, 5)  # processes of an MPS daemon on a GPU, by compute capability


def mps_groups(snapshot: Snapshot, settings: Settings) -> list[MpsGroup]:
    """List what each MPS group has on this host; one that has no GPU is not in it.

    Limits where the group says none: an equal part of the smallest GPU, as NVIDIA's plugin computes them; with slices
    the largest one's, since clients can have the daemon's limits lowered only.

    Args:
        snapshot: of its inventory, without an error.
        settings: in force.

    Raises:
        GpushimError: groups do not go together, or not with these GPUs.
    """
    if not any(group.mps for group in settings.sharing):
        return []
    there = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], [])
    return _daemons(_members(there, snapshot, settings.sharing, []), snapshot)


def _daemons(members: Members, snapshot: Snapshot) -> list[MpsGroup]:
    gpus = {gpu["uuid"]: gpu for gpu in snapshot["gpus"]}
    found = []
    for (group, devices), name in zip(members, _directories([group for group, _ in members])):
        if group.mps and devices:
            mine = tuple(MpsGpu(one.uuid, one.gpu, gpus[one.uuid]["memory"]) for one in devices)
            memory, threads = _limits(group, group.mps, [one.memory for one in mine if one.memory])
            found.append(MpsGroup(name, mine, memory, threads, group.mps.multi_user))
    return found


def divide(there: There, snapshot: Snapshot, groups: Sequence[Group], notes: list[str]) -> There:
    """Let each device be what its group makes of it; what is in none stays as it is.

    Args:
        there: what resources.find returned for the snapshot.
        snapshot: of its inventory.
        groups: of the settings' sharing.
        notes: gets a sentence for each thing that does nothing, and for what surprises pods.

    Returns:
        the devices that kubelet counts, by their resource's name.

    Raises:
        GpushimError: groups do not go together, or not with these GPUs.
    """
    members = _members(there, snapshot, groups, notes)
    daemons = {one.name: one for one in _daemons(members, snapshot)}
    parts: dict[str, list[tuple[str, list[Device]]]] = {}
    made = 0
    for (group, devices), name in zip(members, _directories(groups)):
        for device in devices:
            parts[device.id] = _parts(device, group, daemons.get(name))
            made += sum(len(replicas) for _, replicas in parts[device.id])
            if made > bounds.PLUGIN_SHARES:
                raise GpushimError(f"sharing makes more than {bounds.PLUGIN_SHARES} devices; give out fewer", CONFIG)
    found: There = {}
    for resource, devices in there.items():
        for device in devices:
            for name, replicas in parts.get(device.id, [(resource, [device])]):
                found.setdefault(name, []).extend(replicas)
    notes += _mixed(found)
    return found


def _parts(device: Device, group: Group, daemon: MpsGroup | None) -> list[tuple[str, list[Device]]]:
    """List what becomes of a device: resources, and what it is in each."""
    single, memory = group.single and group.replicas > 1, group.memory
    share = Share(TIME_SLICING, group.distinct, single, group.policy, memory=memory)
    if daemon:
        share = replace(share, kind=MPS, group=daemon.name, memory=daemon.memory, threads=daemon.threads)
    if not (daemon and group.mps and group.mps.slices):
        return [(group.name, resources.replicated([device], group.replicas, share))]
    return [
        (one.name, resources.replicated([device], one.count, _sliced(share, one), numbered=True))
        for one in group.mps.slices
    ]


def _sliced(share: Share, one: Slice) -> Share:
    return replace(share, memory=one.memory or share.memory, threads=one.threads or share.threads, sliced=True)


def _directories(groups: Sequence[Group]) -> list[str]:
    """Name the directory and unit of each group of MPS; "" for others."""
    taken: list[str] = []
    for group in groups:
        name = base = group.name.partition("/")[2] if group.mps else ""
        number = 1
        while name and name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.append(name)
    return taken


def _members(there: There, snapshot: Snapshot, groups: Sequence[Group], notes: list[str]) -> Members:
    """List each group's devices; no device is in two."""
    found: Members = []
    of_group: dict[str, Group] = {}
    for group in groups:
        if group.resource not in there:
            notes.append(
                f"{quote(group.resource)} is to be shared, and this node has no such resource; it has "
                f"{', '.join(there) or 'none'}"
            )
        devices = _chosen(there, snapshot, group, notes)
        for device in devices:
            if device.id in of_group:
                raise GpushimError(
                    f"sharing has {device.uuid} in two entries, of {group.name} and of {of_group[device.id].name}; "
                    "name it under devices of one of them",
                    CONFIG,
                )
            of_group[device.id] = group
        if group.mps and devices:
            _check_mps(group, group.mps, devices, snapshot, notes)
        found.append((group, devices))
    return found


def _chosen(there: There, snapshot: Snapshot, group: Group, notes: list[str]) -> list[Device]:
    """List the devices of its resource that a group means, in order."""
    devices = there.get(group.resource, [])
    if group.devices is None or not devices:
        return [*devices]
    if isinstance(group.devices, int):
        if group.devices > len(devices):
            notes.append(f"{group.name} is to have {group.devices} devices, and {group.resource} has {len(devices)}")
        return [*devices[: group.devices]]
    meant: set[str] = set()
    for text in group.devices:
        gpus, migs = _meant(text, snapshot)
        ids = {device.id for device in devices if device.gpu in gpus or device.uuid in migs}
        if not ids:
            others = [name for name, row in there.items() if any(one.gpu in gpus or one.uuid in migs for one in row)]
            models = sorted(
                {gpu["model"] for gpu in snapshot["gpus"] if any(gpu["index"] == one.gpu for one in devices)}
            )
            notes.append(
                f'devices of {group.name} has "{quote(text)}", which is none of {group.resource} on this node'
                f"{', but of ' * bool(others)}{', '.join(others)}; that has "
                f"{', '.join(device.index for device in devices[: bounds.LISTED])} ({', '.join(models)})"
            )
        meant |= ids
    return [device for device in devices if device.id in meant]


def _meant(text: str, snapshot: Snapshot) -> tuple[set[int], set[str]]:
    """Find indices of GPUs, and UUIDs of MIG instances, that an entry of `devices` means."""
    found = [one for item in selection.parse([text], ()) or () for one in selection.find(item, snapshot)]
    gpus = {one["index"] for one in found if "gi" not in one}
    migs = {one["uuid"] for one in found if "gi" in one}
    if found:
        return gpus, migs
    models = {gpu["model"] for gpu in snapshot["gpus"]}  # mostly one; a pattern may take 1 ms
    alike = {model for model in models if fnmatchcase(model.lower(), text.lower())}
    gpus = {gpu["index"] for gpu in snapshot["gpus"] if gpu["model"] in alike}
    return gpus, {mig["uuid"] for mig in snapshot["mig"] if mig["profile"] == text}


def _check_mps(group: Group, mps: Mps, devices: Sequence[Device], snapshot: Snapshot, notes: list[str]) -> None:
    """Refuse what MPS cannot do with these GPUs."""
    if snapshot["platform"] in ALL_IN_ONE:
        raise GpushimError(
            f"{group.name} is to be shared by MPS, which is not on this platform; use timeSlicing", CONFIG
        )
    gpus = {gpu["index"]: gpu for gpu in snapshot["gpus"]}
    divided = sorted({str(one.gpu) for one in devices if ":" in one.index or gpus[one.gpu]["mig"]})
    if divided:
        raise GpushimError(
            f"{group.name} is to be shared by MPS, but GPU {', '.join(divided)} is in MIG mode; leave it out of "
            "devices, use timeSlicing, or switch the mode off (nvidia-smi -mig 0)",
            CONFIG,
        )
    for device in devices:
        _check_gpu(group, mps, gpus[device.gpu], notes)


def _check_gpu(group: Group, mps: Mps, gpu: Gpu, notes: list[str]) -> None:
    """Hold a group against a GPU's memory, and the number of clients that a daemon takes on it."""
    who, total = f"GPU {gpu['index']}", gpu["memory"]
    most = CLIENTS if _capability(gpu) >= TURING else CLIENTS_BEFORE
    if group.replicas > most:
        raise GpushimError(
            f"{group.name} has {group.replicas} clients on {who}, and MPS takes {most} there; give out fewer", CONFIG
        )
    largest = max([one.memory or 0 for one in mps.slices] + [mps.memory or 0])
    if not total:
        if not largest and not gpu["problem"]:
            notes.append(f"{group.name} has no limit of memory on {who}, whose size is not known; set memory")
        return
    if largest > total:
        name = next((one.name for one in mps.slices if one.memory == largest), group.name)
        raise GpushimError(f"{name} has {largest} MiB a client, and {who} has {total} MiB; lower memory", CONFIG)
    together = sum((one.memory or 0) * one.count for one in mps.slices)
    if together > total:
        raise GpushimError(
            f"the slices of {group.name} have {together} MiB together, and {who} has {total} MiB; make them fewer or "
            "smaller",
            CONFIG,
        )
    if (mps.memory or 0) * group.replicas > total:
        notes.append(
            f"{group.name} gives out {mps.memory} MiB {group.replicas} times, and {who} has {total} MiB: clients may "
            "find no memory below their limit"
        )


def _limits(group: Group, mps: Mps, totals: Sequence[int]) -> tuple[int | None, int]:
    """Return a daemon's limits, MiB and percent."""
    memory, threads = mps.memory, mps.threads
    if mps.slices:
        sizes, parts = [one.memory for one in mps.slices], [one.threads for one in mps.slices]
        memory = None if None in sizes else max(size for size in sizes if size)
        threads = 100 if None in parts else max(part for part in parts if part)
        return memory or (min(totals) if totals else None), threads
    if memory is None and totals:
        memory = min(totals) // group.replicas
    return memory, threads or max(100 // group.replicas, 1)


def _capability(gpu: Gpu) -> tuple[int, ...]:
    """Return a GPU's compute capability; a very high one if it is not known, for most GPUs are young."""
    try:
        return tuple(int(part) for part in gpu["arch"].split("."))
    except ValueError:
        return (99,)


def _mixed(found: There) -> list[str]:
    """Say which resources have devices that differ in a way that pods notice."""
    notes = []
    for name, devices in found.items():
        kinds = Counter((one.share.kind, one.share.group) if one.share else ("", "") for one in devices)
        if len(kinds) > 1 and (("", "") in kinds or any(group for _, group in kinds)):
            notes.append(
                f"{name} has whole devices and shared ones, or those of several MPS daemons, and a pod cannot "
                "choose; rename a group, or let it have all devices"
            )
    return notes
