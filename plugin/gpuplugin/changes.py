"""What kubelet is told while pods have devices as they were before settings or MIG instances changed.

A device is whole, or shared in some way: it is never given out in two of these ways at once. What no pod has changes
at once; the rest keeps its ids, of which kubelet counts those that pods have, and follows when they are free.
Pure: out of scope is who asks kubelet (questions.py), and what becomes of what the host has lost (offer.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from gpuplugin.resources import Device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpushim.model import Snapshot

    Devices = Mapping[str, Sequence[Device]]  # by resource
    Served = Mapping[str, Mapping[str, Device]]  # by resource and id
    Held = Mapping[str, Mapping[str, str]]  # who has it, by resource and id
    There = Mapping[str, tuple[int, str]]  # index of its GPU, and what is wrong with it, by UUID of GPU or instance

NAMED = 3  # pods that a sentence names


@dataclass(frozen=True)
class _Holder:
    """A device that somebody has; `device` is None if it was given out before this process started."""

    who: str
    resource: str
    id: str
    uuid: str
    device: Optional[Device]

    def has(self, resource: str, device: Device) -> bool:
        """Say whether a device is given out in the same way as this one was."""
        if self.device:
            return _way(self.resource, self.device) == _way(resource, device)
        return self.resource == resource and ("::" in self.id) == ("::" in device.id)

    def excludes(self, resource: str, device: Device) -> bool:
        """Say whether a device of the same GPU cannot be given out while somebody has this one."""
        if self.uuid == device.uuid:
            return not self.has(resource, device)
        return _is_instance(self.uuid) != _is_instance(device.uuid)


def settled(served: Served, wanted: Devices, held: Held, there: There) -> dict[str, list[Device]]:
    """List what kubelet is to be told now.

    Args:
        served: what it was told, which may be less than what pods have: this process may be new.
        wanted: what it would be told if no pod had anything.
        held: who has what, all devices that may be under way to a container among it.
        there: what the host has.

    Returns:
        what is wanted, where somebody has it in another way with a problem that says so, and after that of each
        resource what somebody has and is not wanted; what is in neither is not to be given out any more.
    """
    holders: dict[int, list[_Holder]] = {}  # by index of the GPU
    for one in _holders(served, held):
        if one.uuid in there:
            holders.setdefault(there[one.uuid][0], []).append(one)
    found = {name: {one.id: one for one in _marked(name, row, holders)} for name, row in wanted.items()}
    known = {gpu for row in wanted.values() for gpu in (one.gpu for one in row)}
    for gpu, row in holders.items():
        for one in row if gpu in known else ():  # what is given out in no way is gone
            _keep(one, found, there)
    return {name: [*row.values()] for name, row in found.items() if row}


def changing(served: Served, wanted: Devices, there: There) -> bool:
    """Say whether it matters who has what: as for `settled`."""
    everything = {name: dict.fromkeys(row, "") for name, row in served.items()}
    return settled(served, wanted, everything, there) != wanted


def places(snapshot: Snapshot, wanted: Devices) -> There:
    """Say of which GPU each UUID is, and what is wrong with that; so of all GPUs where they are one device.

    Args:
        snapshot: of the host's inventory.
        wanted: what is given out of it.
    """
    found = {one.uuid: (one.gpu, one.problem) for row in wanted.values() for one in row}
    gpus = {gpu["index"]: gpu["problem"] or "" for gpu in snapshot["gpus"]}
    found.update({gpu["uuid"]: (gpu["index"], gpus[gpu["index"]]) for gpu in snapshot["gpus"] if gpu["uuid"]})
    found.update({mig["uuid"]: (mig["gpu"], gpus.get(mig["gpu"], "")) for mig in snapshot["mig"]})
    return found


def _holders(served: Served, held: Held) -> list[_Holder]:
    found = []
    for resource, ids in held.items():
        for name, who in ids.items():
            device = served.get(resource, {}).get(name)
            uuid = device.uuid if device else name.partition("::")[0]
            found.append(_Holder(who, resource, name, uuid, device))
    return found


def _marked(resource: str, devices: Sequence[Device], holders: Mapping[int, Sequence[_Holder]]) -> Iterator[Device]:
    """Add the problem that somebody has a device in another way; its own comes first."""
    problems: dict[object, str] = {}  # alike for all replicas, of which there may be thousands
    for one in devices:
        key = (one.uuid, _way(resource, one), "::" in one.id)
        if key not in problems:
            problems[key] = _waiting(resource, one, holders.get(one.gpu, ()))
        yield replace(one, problem=problems[key]) if problems[key] and not one.problem else one


def _waiting(resource: str, device: Device, holders: Sequence[_Holder]) -> str:
    names = sorted({one.who for one in holders if one.excludes(resource, device)})
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    shown = ", ".join(names[:NAMED])
    return f"it is to be given out in another way than before, which waits for the end of {shown}{more}"


def _keep(holder: _Holder, found: dict[str, dict[str, Device]], there: There) -> None:
    """Keep what somebody has listed, as it was, after what is wanted."""
    row = found.setdefault(holder.resource, {})
    same = row.get(holder.id)
    if holder.device and not (same and holder.has(holder.resource, same)):
        row.pop(holder.id, None)
        row[holder.id] = replace(holder.device, problem=there[holder.uuid][1])


def _way(resource: str, device: Device) -> tuple[str, str]:
    """Name the way in which a device is given out; slices of an MPS daemon are one, whatever they are called."""
    share = device.share
    return (share.kind, share.group or resource) if share else ("::" if "::" in device.id else "", resource)


def _is_instance(uuid: str) -> bool:
    return uuid.startswith("MIG-")
