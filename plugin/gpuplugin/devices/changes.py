"""Whether a device may be given out in another division than the one before: the rule, in one place.

A device is whole, or shared in some way, under some resource's name: it is never given out in two of these ways at
once, whoever gives it out. It changes only when it is known that nobody has it. While that is unknown it keeps its
division: a kubelet that comes back refuses its pods otherwise. What nobody has changes at once; the rest keeps its
ids, of which kubelet counts those that pods have, and follows when they are free.
A MIG instance that was made in the place of another waits for who has that one, whose nodes are the same. What a pod
has that kubelet has forgotten is not given out in any way: kubelet would give it once more.
Pure: out of scope is who asks kubelet (kubelet_view.py), what is remembered (by_device.py), and what becomes of what
the host has lost (offer.py).
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
    """What a decision comes to.

    Attributes:
        listed: devices by resource, as kubelet is to be told.
        waits: UUIDs of what is wanted in a division that it cannot have yet.
        occupied: UUIDs of what somebody has, or may have.
    """

    listed: dict[str, list[Device]]
    waits: frozenset[str]
    occupied: frozenset[str]


@dataclass(frozen=True)
class _Holder:
    """A device that somebody has; `device` is None if nobody knows in which way it was given out."""

    who: str
    resource: str
    id: str
    uuid: str
    device: Optional[Device]
    place: str = ""  # of a MIG instance that the host does not have any more: its GPU instance

    def has(self, resource: str, device: Device) -> bool:
        """Say whether a device is given out in the same way as this one was."""
        if self.device and not (self.device.share and self.device.share.kind == UNTOLD):
            return way(self.resource, self.device) == way(resource, device)
        return self.resource == resource and ("::" in self.id) == ("::" in device.id)

    def excludes(self, resource: str, device: Device) -> bool:
        """Say whether a device of the same GPU cannot be given out while somebody has this one."""
        if self.uuid == device.uuid:
            return not self.has(resource, device)
        return overlap(self.uuid, device.uuid) or (bool(self.place) and self.place == _gpu_instance(device))


def settled(
    served: Served, desired: Devices, held: Held, units: Units, unknown: str = "", lost: Held | None = None
) -> Settled:
    """Decide what kubelet is to be told now.

    Args:
        served: what was given out last, by whichever process, with the ids that somebody has.
        desired: what kubelet would be told if nobody had anything.
        held: who has what; all devices of which nobody can say who has them are among it.
        units: what the host has, and what it does not have any more (GONE) that somebody may have.
        unknown: why nobody knows what was given out last of what is not in `served`; "" if it was nothing.
        lost: of what is held, why kubelet would give it once more, as it has forgotten that.

    Returns:
        what is wanted, where somebody has it in another way with a problem that says so, and after that of each
        resource what somebody has and is not wanted; what is in neither is not to be given out any more.
    """
    holders: dict[int, list[_Holder]] = {}  # by index of the GPU
    for one in _holders(served, held, units):
        if one.uuid in units:
            holders.setdefault(units[one.uuid].gpu, []).append(one)
    unrecorded = _unrecorded(served, desired) if unknown else frozenset()
    marked = {name: [*_marked(name, row, holders, unrecorded, unknown)] for name, row in desired.items()}
    waits = frozenset(one.uuid for row in marked.values() for one, why in row if why)
    found = {
        name: {one.id: replace(one, problem=one.problem or why) if why else one for one, why in row}
        for name, row in _forgotten(marked, lost or {}).items()
    }
    known = {one.gpu for row in desired.values() for one in row}
    for gpu, row in holders.items():
        for each in row if gpu in known else ():  # what is given out in no way is gone
            if not each.place and (each.who != OTHERS or each.resource in desired):  # else that instance tells it
                _keep(each, found, units)
    occupied = frozenset(one.uuid for row in holders.values() for one in row)
    return Settled({name: [*row.values()] for name, row in found.items() if row}, waits, occupied)


def changing(served: Served, desired: Devices, units: Units) -> bool:
    """Say whether it matters who has what: as for `settled`."""
    everything = {name: dict.fromkeys(row, "") for name, row in served.items()}
    return bool(_unrecorded(served, desired)) or settled(served, desired, everything, units).listed != desired


def way(resource: str, device: Device) -> tuple[str, str]:
    """Name the way in which a device is given out; as `way_of`."""
    share = device.share
    return way_of(resource, "::" in device.id, share.kind if share else "", share.group if share else "")


def way_of(resource: str, numbered: bool, kind: str, group: str) -> tuple[str, str]:
    """Name a way of giving out; slices of an MPS daemon are one, whatever they are called.

    Args:
        resource: its name.
        numbered: ids have a number; what has none is one container's, whatever it is shared by.
        kind: of the share, "" of what is whole.
        group: of MPS, or "".
    """
    if group:
        return (kind if numbered else f"{kind}, alone"), group
    return (kind or "::") if numbered else "", resource


def is_instance(uuid: str) -> bool:
    """Say whether a UUID is a MIG instance's."""
    return uuid.startswith("MIG-")


def overlap(one: str, other: str) -> bool:
    """Say whether two UUIDs of one GPU are the same device, or one is the GPU, which has the other."""
    return one == other or is_instance(one) != is_instance(other)


def _unrecorded(served: Served, desired: Devices) -> frozenset[str]:
    """List what is wanted, and was not given out before."""
    before = {one.uuid for row in served.values() for one in row.values()}
    return frozenset(one.uuid for row in desired.values() for one in row) - before


def _holders(served: Served, held: Held, units: Units) -> list[_Holder]:
    found = []
    for resource, ids in held.items():
        for name, who in ids.items():
            device = served.get(resource, {}).get(name)
            uuid = device.uuid if device else name.partition("::")[0]
            unit = units.get(uuid)
            place = _gpu_instance(unit) if unit and unit.problem == GONE else ""
            found.append(_Holder(who, resource, name, uuid, device, place))
    return found


def _marked(
    resource: str,
    devices: Sequence[Device],
    holders: Mapping[int, Sequence[_Holder]],
    unrecorded: frozenset[str],
    unknown: str,
) -> Iterator[tuple[Device, str]]:
    """Tell of each device why it cannot be given out in this way."""
    problems: dict[object, str] = {}  # alike for all replicas, of which there may be thousands
    for one in devices:
        key = (one.uuid, way(resource, one), "::" in one.id)
        if key not in problems:
            waiting = _waiting(resource, one, holders.get(one.gpu, ()))
            problems[key] = waiting or (unknown if one.uuid in unrecorded else "")
        yield one, problems[key]


def _waiting(resource: str, device: Device, holders: Sequence[_Holder]) -> str:
    """Say who has a device in another way, or what excludes it; a claim is no way of the device plugin's."""
    found = [one for one in holders if one.excludes(resource, device)]
    pods = {one.who for one in found if one.resource != CLAIM}
    claims = {
        f"{one.who} has {'it' if one.uuid == device.uuid else one.uuid}" for one in found if one.resource == CLAIM
    }
    other = f"it is to be given out in another way than before, which waits for the end of {_some(pods)}"
    return "; ".join([_some(claims)] * bool(claims) + [other] * bool(pods))


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more


def _gpu_instance(device: Device) -> str:
    return device.place.partition("/")[0]


def _forgotten(
    marked: Mapping[str, Sequence[tuple[Device, str]]], lost: Held
) -> Mapping[str, Sequence[tuple[Device, str]]]:
    """Add why what a pod has is not given out though it is wanted as it is."""
    return {
        name: [(one, why or rows.get(one.id, "")) for one, why in row] if (rows := lost.get(name)) else row
        for name, row in marked.items()
    }


def forgotten(who: str) -> str:
    """Say why what a pod has is not given out once more, and what ends that."""
    ends = "drain this node, and boot it" if who.startswith(UNNAMED) else "delete that pod, or drain this node"
    return f"{who} has it, which kubelet forgot in its restart; {ends}"


def ending(who: str) -> str:
    """Return why what a pod has that was deleted is not given out yet."""
    return f"{who} has it, is deleted, and has a process that has not ended yet; it is free when that has"


def former(who: str) -> str:
    """Say why what a pod had before a start of kubelet is not given out for a while."""
    return (
        f"{who} had it before kubelet's start, and may have it still; kubelet reports that after running for a while"
    )


def _keep(holder: _Holder, found: dict[str, dict[str, Device]], units: Units) -> None:
    """Keep what somebody has listed, as it was, after what is wanted."""
    row = found.setdefault(holder.resource, {})
    same = row.get(holder.id)
    if holder.device and not (same and holder.has(holder.resource, same)):
        row.pop(holder.id, None)
        row[holder.id] = replace(holder.device, problem=units[holder.uuid].problem)
