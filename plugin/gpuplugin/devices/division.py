"""Groups of sharing on a host: the devices of each, and their replicas."""

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
from gpushim.oci import device_names, selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Gpu, Snapshot

    ByResource = dict[str, list[Device]]  # a host's devices, by resource
    Members = list[tuple[Group, list[Device]]]

CLIENTS, CLIENTS_BEFORE, TURING = 48, 16, (7, 5)  # processes of an MPS daemon on a GPU, by compute capability


def mps_groups(snapshot: Snapshot, settings: Settings) -> list[MpsGroup]:
    """Return each MPS group with its GPUs on this host, but those without one.

    Limits where the group says none: an equal part of the smallest GPU, as NVIDIA's plugin computes them; with slices
    the largest one's, since clients can have the daemon's limits lowered only.

    Raises:
        GpushimError: groups do not go together, or not with these GPUs.
    """
    if not any(group.mps for group in settings.sharing):
        return []
    devices = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], [])
    return _mps_groups(_members(devices, snapshot, settings.sharing, []), snapshot)


def _mps_groups(members: Members, snapshot: Snapshot) -> list[MpsGroup]:
    gpus = {gpu["uuid"]: gpu for gpu in snapshot["gpus"]}
    groups = []
    for (group, devices), name in zip(members, _directory_names([group for group, _ in members])):
        if group.mps and devices:
            mps_gpus = tuple(MpsGpu(device.uuid, device.gpu, gpus[device.uuid]["memory"]) for device in devices)
            memory, threads = _limits(group, group.mps, [device.memory for device in mps_gpus if device.memory])
            groups.append(MpsGroup(name, mps_gpus, memory, threads, group.mps.multi_user))
    return groups


def shares(snapshot: Snapshot, settings: Settings) -> dict[str, Share]:
    """Return how a group shares a device, by UUID of the GPU or MIG instance.

    Raises:
        GpushimError: groups do not go together, or not with these GPUs.
    """
    if not settings.sharing or snapshot["platform"] in ALL_IN_ONE:
        return {}
    strategy = settings.values["mig-strategy"]
    if strategy == "none" and snapshot["source"] == "nvml":  # which is the device plugin's alone
        strategy = "mixed"
    devices_by_resource = resources.find(snapshot, strategy, settings.values["exclude"], [])
    divided = divide(devices_by_resource, snapshot, settings.sharing, [])
    return {device.uuid: device.share for devices in divided.values() for device in devices if device.share}


def divide(
    devices_by_resource: ByResource, snapshot: Snapshot, groups: Sequence[Group], notes: list[str]
) -> ByResource:
    """Return the devices that kubelet counts, by resource: replicas of grouped ones, and the others as they are.

    Args:
        devices_by_resource: what resources.find returned for the snapshot.
        groups: of the settings' sharing.
        notes: gets a sentence for each thing that does nothing, and for what surprises pods.

    Raises:
        GpushimError: groups do not go together, or not with these GPUs.
    """
    members = _members(devices_by_resource, snapshot, groups, notes)
    daemons = {daemon.name: daemon for daemon in _mps_groups(members, snapshot)}
    parts: dict[str, list[tuple[str, list[Device]]]] = {}
    count = 0
    for (group, devices), name in zip(members, _directory_names(groups)):
        for device in devices:
            parts[device.id] = _parts(device, group, daemons.get(name))
            count += sum(len(replicas) for _, replicas in parts[device.id])
            if count > bounds.PLUGIN_SHARES:
                raise GpushimError(f"sharing makes more than {bounds.PLUGIN_SHARES} devices; give out fewer", CONFIG)
    divided: ByResource = {}
    for resource, devices in devices_by_resource.items():
        for device in devices:
            for name, replicas in parts.get(device.id, [(resource, [device])]):
                divided.setdefault(name, []).extend(replicas)
    notes += _note_mixed(divided)
    return divided


def _parts(device: Device, group: Group, daemon: MpsGroup | None) -> list[tuple[str, list[Device]]]:
    single, memory = group.single and group.replicas > 1, group.memory
    share = Share(TIME_SLICING, group.distinct, single, group.policy, memory=memory)
    if daemon:
        share = replace(share, kind=MPS, group=daemon.name, memory=daemon.memory, threads=daemon.threads)
    if not (daemon and group.mps and group.mps.slices):
        return [(group.name, resources.replicated([device], group.replicas, share))]
    return [
        (slice_.name, resources.replicated([device], slice_.count, _slice_share(share, slice_), numbered=True))
        for slice_ in group.mps.slices
    ]


def _slice_share(share: Share, slice_: Slice) -> Share:
    return replace(share, memory=slice_.memory or share.memory, threads=slice_.threads or share.threads, sliced=True)


def _directory_names(groups: Sequence[Group]) -> list[str]:
    """Return the name of the directory and unit of each group of MPS; "" for others."""
    taken: list[str] = []
    for group in groups:
        name = base = group.name.partition("/")[2] if group.mps else ""
        number = 1
        while name and name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.append(name)
    return taken


def _members(
    devices_by_resource: ByResource, snapshot: Snapshot, groups: Sequence[Group], notes: list[str]
) -> Members:
    members: Members = []
    of_group: dict[str, Group] = {}
    for group in groups:
        if group.resource not in devices_by_resource:
            notes.append(
                f"{quote(group.resource)} is to be shared, and this node has no such resource; it has "
                f"{', '.join(devices_by_resource) or 'none'}"
            )
        devices = _choose(devices_by_resource, snapshot, group, notes)
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
        members.append((group, devices))
    return members


def _choose(devices_by_resource: ByResource, snapshot: Snapshot, group: Group, notes: list[str]) -> list[Device]:
    """Return the devices of its resource that a group means, in order."""
    devices = devices_by_resource.get(group.resource, [])
    if group.devices is None or not devices:
        return [*devices]
    if isinstance(group.devices, int):
        if group.devices > len(devices):
            notes.append(f"{group.name} is to have {group.devices} devices, and {group.resource} has {len(devices)}")
        return [*devices[: group.devices]]
    chosen: set[str] = set()
    for text in group.devices:
        gpus, migs = _select(text, snapshot)
        ids = {device.id for device in devices if device.gpu in gpus or device.uuid in migs}
        if not ids:
            other_resources = [
                name
                for name, members in devices_by_resource.items()
                if any(device.gpu in gpus or device.uuid in migs for device in members)
            ]
            indices = {device.gpu for device in devices}
            models = sorted({gpu["model"] for gpu in snapshot["gpus"] if gpu["index"] in indices})
            notes.append(
                f'devices of {group.name} has "{quote(text)}", which is none of {group.resource} on this node'
                f"{', but of ' * bool(other_resources)}{', '.join(other_resources)}; that has "
                f"{', '.join(device.index for device in devices[: bounds.LISTED])} ({', '.join(models)})"
            )
        chosen |= ids
    return [device for device in devices if device.id in chosen]


def _select(text: str, snapshot: Snapshot) -> tuple[set[int], set[str]]:
    """Return indices of GPUs, and UUIDs of MIG instances, that an entry of `devices` means."""
    selected = [device for item in device_names.parse([text], ()) or () for device in selection.find(item, snapshot)]
    gpus = {device["index"] for device in selected if "gi" not in device}
    migs = {device["uuid"] for device in selected if "gi" in device}
    if selected:
        return gpus, migs
    models = {gpu["model"] for gpu in snapshot["gpus"]}  # mostly one; a pattern may take 1 ms
    matching = {model for model in models if fnmatchcase(model.lower(), text.lower())}
    gpus = {gpu["index"] for gpu in snapshot["gpus"] if gpu["model"] in matching}
    return gpus, {mig["uuid"] for mig in snapshot["mig"] if mig["profile"] == text}


def _check_mps(group: Group, mps: Mps, devices: Sequence[Device], snapshot: Snapshot, notes: list[str]) -> None:
    if snapshot["platform"] in ALL_IN_ONE:
        raise GpushimError(
            f"{group.name} is to be shared by MPS, which is not on this platform; use timeSlicing", CONFIG
        )
    gpus = {gpu["index"]: gpu for gpu in snapshot["gpus"]}
    divided = sorted({str(device.gpu) for device in devices if ":" in device.index or gpus[device.gpu]["mig"]})
    if divided:
        raise GpushimError(
            f"{group.name} is to be shared by MPS, but GPU {', '.join(divided)} is in MIG mode; leave it out of "
            "devices, use timeSlicing, or switch the mode off (nvidia-smi -mig 0)",
            CONFIG,
        )
    for device in devices:
        _check_gpu(group, mps, gpus[device.gpu], notes)


def _check_gpu(group: Group, mps: Mps, gpu: Gpu, notes: list[str]) -> None:
    """Check a group against a GPU's memory, and the number of clients that a daemon takes on it."""
    label, total = f"GPU {gpu['index']}", gpu["memory"]
    limit = CLIENTS if _capability(gpu) >= TURING else CLIENTS_BEFORE
    if group.replicas > limit:
        raise GpushimError(
            f"{group.name} has {group.replicas} clients on {label}, and MPS takes {limit} there; give out fewer",
            CONFIG,
        )
    largest = max([slice_.memory or 0 for slice_ in mps.slices] + [mps.memory or 0])
    if not total:
        if not largest and not gpu["problem"]:
            notes.append(f"{group.name} has no limit of memory on {label}, whose size is not known; set memory")
        return
    if largest > total:
        name = next((slice_.name for slice_ in mps.slices if slice_.memory == largest), group.name)
        raise GpushimError(f"{name} has {largest} MiB a client, and {label} has {total} MiB; lower memory", CONFIG)
    together = sum((slice_.memory or 0) * slice_.count for slice_ in mps.slices)
    if together > total:
        raise GpushimError(
            f"the slices of {group.name} have {together} MiB together, and {label} has {total} MiB; make them fewer "
            "or smaller",
            CONFIG,
        )
    if (mps.memory or 0) * group.replicas > total:
        notes.append(
            f"{group.name} gives out {mps.memory} MiB {group.replicas} times, and {label} has {total} MiB: clients "
            "may find no memory below their limit"
        )


def _limits(group: Group, mps: Mps, totals: Sequence[int]) -> tuple[int | None, int]:
    """Return a daemon's limits, MiB and percent."""
    memory, threads = mps.memory, mps.threads
    if mps.slices:
        sizes, parts = [slice_.memory for slice_ in mps.slices], [slice_.threads for slice_ in mps.slices]
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


def _note_mixed(divided: ByResource) -> list[str]:
    """Return a note for each resource with devices that differ in a way that pods notice."""
    notes = []
    for name, devices in divided.items():
        kinds = Counter((device.share.kind, device.share.group) if device.share else ("", "") for device in devices)
        if len(kinds) > 1 and (("", "") in kinds or any(group for _, group in kinds)):
            notes.append(
                f"{name} has whole devices and shared ones, or those of several MPS daemons, and a pod cannot "
                "choose; rename a group, or let it have all devices"
            )
    return notes
