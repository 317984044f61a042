"""How this host's GPUs are to be given out, after who has what: the lists for kubelet, and the divisions recorded.

Pure. Out of scope: the rule by which a device may change (devices/changes.py), what becomes of an allocation
(transitions.py).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gpuplugin.devices import changes
from gpuplugin.devices.changes import CLAIM, OTHERS, is_instance
from gpuplugin.record import transitions
from gpuplugin.record.record_form import MOST
from gpuplugin.record.transitions import list_allocations, list_held, owner_of
from gpuplugin.settings import resources
from gpuplugin.settings.resources import GONE, Device, Share
from gpuplugin.settings.sharing import MPS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.devices.changes import Devices, Served, Settled, Units
    from gpuplugin.record.record_form import Allocation, Division, Gpu, Part, Record

STARTS, UNSAID = "a pod that starts", "pods that kubelet (pod-resources) has not named yet"
LATER = "kubelet reports that after running for a while"


def with_former(record: Record, units: Units) -> dict[str, Device]:
    """Return what the host has, and the MIG instances that it has no more and somebody may."""
    indices = {unit.uuid: unit.gpu for unit in units.values()}
    rows = [
        (gpu, allocation["device"], allocation["placement"])
        for gpu, row in record["gpus"].items()
        for allocation in row["allocations"].values()
    ]
    rows += [
        (gpu, uuid, division["placement"])
        for gpu, row in record["gpus"].items()
        for uuid, division in row["divisions"].items()
    ]
    rows += [
        (device["gpu"], device["uuid"], device["placement"])
        for claim in record["claims"].values()
        for device in list_held(claim)
    ]
    former = {
        uuid: Device(uuid, uuid, "", indices[gpu], problem=GONE, placement=placement)
        for gpu, uuid, placement in rows
        if uuid not in units and gpu in indices
    }
    return {**former, **units}


def decide(
    record: Record, desired: Devices, units: Units, foreign: Collection[str] = ()
) -> tuple[Settled, dict[str, dict[str, Device]]]:
    """Decide what kubelet is told.

    Args:
        record: after kubelet has told what it has.
        desired: what kubelet would be told if nobody had anything.
        units: as `with_former` returns them.
        foreign: UUIDs of what another instance that is there gives out.

    Returns:
        that, and what was given out last.
    """
    holders: dict[str, dict[str, str]] = {}
    for resource, name, allocation in list_allocations(record):
        is_named = allocation["pod"] or allocation["uid"]
        holders.setdefault(resource, {})[name] = owner_of(allocation) if is_named else STARTS
    holders.setdefault(CLAIM, {}).update(transitions.claims_by_uuid(record))
    last = list_served(record, units)
    for resource, devices in last.items():
        for name, device in devices.items():
            if device.uuid in foreign and device.problem != GONE:
                holders.setdefault(resource, {})[name] = OTHERS
            elif record["unknown"]:
                holders.setdefault(resource, {}).setdefault(name, UNSAID)
    reason = record["unknown"]
    unknown = f"nobody can say yet what pods have of it, for {reason}; {LATER}" if reason else ""
    return changes.settled(last, desired, holders, units, unknown, transitions.find_lost(record)), last


def list_served(record: Record, units: Units) -> dict[str, dict[str, Device]]:
    """Return what was given out last, by resource and id: each division's devices, and those that somebody has."""
    served: dict[str, dict[str, Device]] = {}
    for gpu in record["gpus"].values():
        for uuid, division in gpu["divisions"].items():
            for resource, part in division["parts"].items() if uuid in units else ():
                row = resources.replicated([units[uuid]], part["count"], _share(part), part["numbered"])
                served.setdefault(resource, {}).update((device.id, device) for device in row)
    for resource, name, allocation in list_allocations(record):
        unit, devices = units.get(allocation["device"]), served.setdefault(resource, {})
        if unit and name not in devices:
            alike = next((device for device in devices.values() if _is_alike(device, unit, name)), None)
            devices[name] = replace(alike or replace(unit, share=_share_of(allocation)), id=name)
    return served


def _is_alike(device: Device, unit: Device, name: str) -> bool:
    return device.uuid == unit.uuid and ("::" in device.id) == ("::" in name)


def _share_of(allocation: Allocation) -> Share | None:
    kind, name = allocation["sharing"]
    kind = kind.partition(",")[0]
    return Share(kind, group=name if kind == MPS else "") if kind not in ("", "::") else None


def _share(part: Part) -> Share | None:
    return Share(**part["share"]) if part["share"] is not None else None


def divide(record: Record, desired: Devices, last: Served, decision: Settled, units: Units, owner: int) -> Record:
    """Return the record after a decision: what does not wait is in its new division, the rest as it was.

    Args:
        record: for which it was decided.
        desired: as it was for the decision.
        last: what was given out last.
        units: as for `decide`.
        owner: this instance, which owns what it gives out as it wants.
    """
    gpu_uuids = {unit.gpu: unit.uuid for unit in units.values() if not is_instance(unit.uuid)}
    divisions: dict[str, dict[str, Division]] = {
        gpu_uuids[device.gpu]: {} for row in desired.values() for device in row
    }
    last_parts = _list_parts({name: [*row.values()] for name, row in last.items()})
    before = {uuid: division for gpu in record["gpus"].values() for uuid, division in gpu["divisions"].items()}
    for uuid in decision.occupied & last_parts.keys():
        former = before.get(uuid) or _make_division(last_parts[uuid], 0, units[uuid])
        divisions.get(gpu_uuids[units[uuid].gpu], {})[uuid] = former
    for uuid, parts in _list_parts(desired).items():
        if uuid in decision.occupied:
            _enlarge(parts, last_parts.get(uuid, {}))
        if uuid not in decision.waits:
            divisions[gpu_uuids[units[uuid].gpu]][uuid] = _make_division(parts, owner, units[uuid])
    return _write_divisions(record, divisions)


def _make_division(parts: dict[str, Part], owner: int, unit: Device) -> Division:
    return {"parts": parts, "owner": owner, "placement": unit.placement}


def _write_divisions(record: Record, divisions: Mapping[str, dict[str, Division]]) -> Record:
    """Return the record with these divisions, by GPU and UUID; of a new generation if one is another."""
    gpus = dict(record["gpus"])
    empty: Gpu = {"divisions": {}, "allocations": {}}
    for gpu, row in divisions.items():
        gpus[gpu] = {**gpus.get(gpu, empty), "divisions": row}
    is_other = _parts_by_uuid(gpus) != _parts_by_uuid(record["gpus"])
    return {**record, "gpus": gpus, "generation": record["generation"] + is_other}


def find_owners(record: Record) -> dict[str, int]:
    """Return the instances that divided the GPUs and MIG instances, by UUID."""
    return {uuid: division["owner"] for gpu in record["gpus"].values() for uuid, division in gpu["divisions"].items()}


def _list_parts(desired: Devices) -> dict[str, dict[str, Part]]:
    by_uuid: dict[str, dict[str, Part]] = {}
    for resource, row in desired.items():
        for device in row:
            parts = by_uuid.setdefault(device.uuid, {})
            if resource not in parts:
                share = asdict(device.share) if device.share else None
                parts[resource] = {"count": 0, "numbered": "::" in device.id, "share": share}
            parts[resource]["count"] = max(parts[resource]["count"], _count(device.id))
    return by_uuid


def _count(name: str) -> int:
    """Return how many devices there are up to this id; another plugin's may have any number."""
    number = name.partition("::")[2]
    is_number = number.isdecimal() and len(number) < len(str(MOST))
    return int(number) + 1 if is_number else 1


def _enlarge(parts: dict[str, Part], last: Mapping[str, Part]) -> None:
    """Keep the ids that there were more of, while somebody may have them."""
    for resource, part in parts.items():
        if resource in last and last[resource]["numbered"]:
            part["count"] = max(part["count"], last[resource]["count"])


def _parts_by_uuid(gpus: Mapping[str, Gpu]) -> Any:
    return {
        gpu: {uuid: division["parts"] for uuid, division in row["divisions"].items()} for gpu, row in gpus.items()
    }
