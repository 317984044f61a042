"""Whether a device may be given out in another division than the one before: the rule, in one place.

A device is whole, or shared in some way, under some resource's name: it is never given out in two of these ways at
once, whoever gives it out. It changes only when it is known that nobody has it. While that is unknown it keeps its
division: a kubelet that comes back refuses its pods otherwise. A free device changes at once; the others keep their
ids, of which kubelet counts those that pods have, and follow when they are free.
A MIG instance that was made in the place of another waits for the holder of that one, whose nodes are the same. A
device of a pod that kubelet has forgotten is not given out in any way: kubelet would give it once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from gpuplugin.settings.resources import GONE, Device

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    Devices = Mapping[str, Sequence[Device]]  # by resource
    Served = Mapping[str, Mapping[str, Device]]  # by resource and id
    Held = Mapping[str, Mapping[str, str]]  # who has it, by resource and id
    Units = Mapping[str, Device]  # GPUs and MIG instances that the host has, by UUID

NAMED = 3  # pods, and claims, that a sentence names
CLAIM = "claim"  # in the place of a resource, for what has no id but its UUID
UNNAMED = "the pod with uid "  # begins the names of pods that kubelet does not list
UNTOLD = "?"  # kind of a share of which only ids are known
OTHERS = "another instance of this plugin, which gives it out by other settings"


@dataclass(frozen=True)
class Settled:
    """The result of a decision.

    Attributes:
        listed: devices by resource, as kubelet is to be told.
        waits: UUIDs of devices that are wanted in a division that they cannot have yet.
        occupied: UUIDs of devices that are held, or may be.
    """

    listed: dict[str, list[Device]]
    waits: frozenset[str]
    occupied: frozenset[str]


@dataclass(frozen=True)
class _Holder:
    """A held device; `device` is None if it is unknown in which way it was given out."""

    who: str
    resource: str
    id: str
    uuid: str
    device: Optional[Device]
    placement: str = ""  # of a MIG instance that the host does not have any more: its GPU instance

    def has(self, resource: str, device: Device) -> bool:
        """Return whether a device is given out in the same way as this one was."""
        if self.device and not (self.device.share and self.device.share.kind == UNTOLD):
            return way(self.resource, self.device) == way(resource, device)
        return self.resource == resource and ("::" in self.id) == ("::" in device.id)

    def excludes(self, resource: str, device: Device) -> bool:
        """Return whether a device of the same GPU cannot be given out while this one is held."""
        if self.uuid == device.uuid:
            return not self.has(resource, device)
        return overlap(self.uuid, device.uuid) or (bool(self.placement) and self.placement == _gpu_instance(device))


def settled(
    served: Served, desired: Devices, held: Held, units: Units, unknown: str = "", lost: Held | None = None
) -> Settled:
    """Decide the list of devices for kubelet.

    Args:
        served: devices as they were given out last, by whichever process, with the ids that are held.
        desired: the list if nobody had anything.
        held: holders; all devices of which nobody can say who has them are among it.
        units: what the host has, and what it does not have any more (GONE) that may be held.
        unknown: why nobody knows what was given out last of what is not in `served`; "" if it was nothing.
        lost: of what is held, why kubelet would give it once more, as it has forgotten that.

    Returns:
        desired devices, with a problem where they are held in another way, and after these of each resource the held
        devices that are not desired; a device in neither is not to be given out any more.
    """
    holders: dict[int, list[_Holder]] = {}  # by index of the GPU
    for holder in _list_holders(served, held, units):
        if holder.uuid in units:
            holders.setdefault(units[holder.uuid].gpu, []).append(holder)
    unrecorded = _find_unrecorded(served, desired) if unknown else frozenset()
    marked = {name: [*_mark(name, devices, holders, unrecorded, unknown)] for name, devices in desired.items()}
    waits = frozenset(device.uuid for pairs in marked.values() for device, problem in pairs if problem)
    lost = lost or {}
    listed = {
        name: {
            device.id: replace(device, problem=device.problem or problem) if problem else device
            for device, problem in ((device, wait or lost.get(name, {}).get(device.id, "")) for device, wait in pairs)
        }
        for name, pairs in marked.items()
    }
    gpus = {device.gpu for devices in desired.values() for device in devices}
    # Of other GPUs nothing is listed.
    for holder in (holder for gpu in holders if gpu in gpus for holder in holders[gpu]):
        is_ours = holder.who != OTHERS or holder.resource in desired  # else that instance lists it
        if not holder.placement and is_ours:
            _keep(holder, listed, units)
    occupied = frozenset(holder.uuid for group in holders.values() for holder in group)
    return Settled({name: [*row.values()] for name, row in listed.items() if row}, waits, occupied)


def changing(served: Served, desired: Devices, units: Units) -> bool:
    """Return whether it matters who holds what: as for `settled`."""
    all_held = {name: dict.fromkeys(ids, "") for name, ids in served.items()}
    return bool(_find_unrecorded(served, desired)) or settled(served, desired, all_held, units).listed != desired


def way(resource: str, device: Device) -> tuple[str, str]:
    share = device.share
    return way_of(resource, "::" in device.id, share.kind if share else "", share.group if share else "")


def way_of(resource: str, numbered: bool, kind: str, group: str) -> tuple[str, str]:
    """Return a way of giving out; slices of an MPS daemon are one, whatever they are called.

    Args:
        numbered: ids have a number; a device without is one container's, whatever it is shared by.
        kind: of the share, "" of a whole device.
        group: of MPS, or "".
    """
    if group:
        return (kind if numbered else f"{kind}, alone"), group
    return (kind or "::") if numbered else "", resource


def is_instance(uuid: str) -> bool:
    return uuid.startswith("MIG-")


def overlap(first: str, second: str) -> bool:
    """Return whether two UUIDs of one GPU are the same device, or one is the GPU, which has the other."""
    return first == second or is_instance(first) != is_instance(second)


def _find_unrecorded(served: Served, desired: Devices) -> frozenset[str]:
    known = {device.uuid for devices in served.values() for device in devices.values()}
    return frozenset(device.uuid for devices in desired.values() for device in devices) - known


def _list_holders(served: Served, held: Held, units: Units) -> list[_Holder]:
    holders = []
    for resource, ids in held.items():
        for name, holder in ids.items():
            device = served.get(resource, {}).get(name)
            uuid = device.uuid if device else name.partition("::")[0]
            unit = units.get(uuid)
            instance = _gpu_instance(unit) if unit and unit.problem == GONE else ""
            holders.append(_Holder(holder, resource, name, uuid, device, instance))
    return holders


def _mark(
    resource: str,
    devices: Sequence[Device],
    holders: Mapping[int, Sequence[_Holder]],
    unrecorded: frozenset[str],
    unknown: str,
) -> Iterator[tuple[Device, str]]:
    """Yield each device with the reason why it cannot be given out in this way."""
    problems: dict[object, str] = {}  # alike for all replicas, of which there may be thousands
    for device in devices:
        key = (device.uuid, way(resource, device), "::" in device.id)
        if key not in problems:
            waiting = _describe_wait(resource, device, holders.get(device.gpu, ()))
            problems[key] = waiting or (unknown if device.uuid in unrecorded else "")
        yield device, problems[key]


def _describe_wait(resource: str, device: Device, holders: Sequence[_Holder]) -> str:
    """Return who has a device in another way, or what excludes it; a claim is no way of the device plugin's."""
    excluding = [holder for holder in holders if holder.excludes(resource, device)]
    pods = {holder.who for holder in excluding if holder.resource != CLAIM}
    claims = {
        f"{holder.who} has {'it' if holder.uuid == device.uuid else holder.uuid}"
        for holder in excluding
        if holder.resource == CLAIM
    }
    sentence = f"the settings give it out in another way now, which waits for the end of {_join_names(pods)}"
    return "; ".join([_join_names(claims)] * bool(claims) + [sentence] * bool(pods))


def _join_names(names: Collection[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + rest


def _gpu_instance(device: Device) -> str:
    return device.placement.partition("/")[0]


def ending(holder: str) -> str:
    """Return why the device of a pod that kubelet does not know any more is not given out yet, and what ends that."""
    return (
        f"{holder} has it, which kubelet no longer knows, and of which a process still runs; it is free when that "
        "ends: delete the pod if it is still there, or end the process"
    )


def _keep(holder: _Holder, listed: dict[str, dict[str, Device]], units: Units) -> None:
    """List a held device as it was given out, after the desired ones."""
    devices = listed.setdefault(holder.resource, {})
    listed_device = devices.get(holder.id)
    if holder.device and not (listed_device and holder.has(holder.resource, listed_device)):
        devices.pop(holder.id, None)
        devices[holder.id] = replace(holder.device, problem=units[holder.uuid].problem)
