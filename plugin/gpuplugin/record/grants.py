"""The rule that no device is given out twice: what a container or a claim gets, or who has it already. Pure.

A device excludes itself in another division, the GPU or the MIG instances that it is a part of or has, and whatever
had its GPU instance. Claims may have parts of one, as long as there is memory for all of them.
Out of scope: what becomes of what was granted (transitions.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.devices import changes
from gpuplugin.devices.changes import UNTOLD, overlap, way_of
from gpuplugin.record.record_form import GRANTED, LOST
from gpuplugin.record.transitions import describe, describe_ending, list_held, owner_of
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpuplugin.record.record_form import Allocation, Claim, ClaimDevice, Gpu, Grants, Record


_KINDS = {"::": "several containers", UNTOLD: "not known how"}  # of changes.way_of, for people


class Request(NamedTuple):
    """A device that a container is to get, and the way in which it is given out, as `changes.way_of` has it."""

    uuid: str
    resource: str
    id: str
    sharing: tuple[str, str]

    @property
    def key(self) -> str:
        """Return "RESOURCE ID", as the record has it."""
        return f"{self.resource} {self.id}"


def grant(record: Record, requests: Sequence[Request], clock: float, busy: Collection[str]) -> tuple[Record, Grants]:
    """Return the record with what a container gets of the device plugin, and that by itself.

    Args:
        record: of this boot.
        requests: what the container gets.
        clock: seconds since boot.
        busy: "RESOURCE ID" of what a pod had of which a process is left.

    Raises:
        GpushimError: somebody has it, or it is in another division.
    """
    gpu_of = {uuid: gpu for gpu, row in record["gpus"].items() for uuid in row["divisions"]}
    rows: dict[str, dict[str, Allocation]] = {}
    for request in requests:
        home = gpu_of.get(request.uuid, "")
        gpu: Gpu = record["gpus"].get(home, {"divisions": {}, "allocations": {}})
        _check_division(gpu, request)
        _check_free(record, home, request, busy)
        rows.setdefault(home, {})[request.key] = {
            "device": request.uuid,
            "placement": gpu["divisions"][request.uuid]["placement"],
            "sharing": [*request.sharing],
            "pod": "",
            "uid": "",
            "state": GRANTED,
            "since": clock,
        }
    gpus = dict(record["gpus"])
    for home, row in rows.items():
        gpus[home] = {**gpus[home], "allocations": {**gpus[home]["allocations"], **row}}
    return {**record, "gpus": gpus}, rows


def _check_free(record: Record, home: str, request: Request, busy: Collection[str]) -> None:
    before = record["gpus"][home]["allocations"].get(request.key)
    # kubelet takes it for free: an owner of which a process is left is one that kubelet has forgotten. Else what is
    # granted now takes the place of what the record has.
    if before and request.key in busy:
        raise GpushimError(f"{request.uuid} cannot be given out: {changes.ending(owner_of(before))}", REQUEST)
    conflict = _find_conflict(record, home, request)
    if conflict:
        sentence = f"{request.uuid} cannot be given out as {_name_sharing(request.sharing)}: {conflict}"
        raise GpushimError(sentence, REQUEST)


def _check_division(gpu: Gpu, request: Request) -> None:
    parts = gpu["divisions"][request.uuid]["parts"] if gpu["divisions"] else {}
    ways = {
        way_of(
            resource, part["numbered"], (part["share"] or {}).get("kind", ""), (part["share"] or {}).get("group", "")
        )
        for resource, part in parts.items()
    }
    if request.sharing not in ways:
        last = " and ".join(sorted(map(_name_sharing, ways))) or "nothing yet"
        raise GpushimError(
            f"{request.uuid} is not given out as {_name_sharing(request.sharing)} now, but as {last}", REQUEST
        )


def _find_conflict(record: Record, home: str, request: Request) -> str:
    """Return who has what a request excludes, a clause; "" if nobody has."""
    gpu = record["gpus"][home]
    placement = gpu["divisions"][request.uuid]["placement"]
    for key, allocation in gpu["allocations"].items():
        had = allocation["device"]
        is_same_placement = bool(placement) and allocation["placement"] == placement and had != request.uuid
        if is_same_placement or (overlap(had, request.uuid) and not _is_shared_alike(key, allocation, request)):
            sharing = allocation["sharing"][0], allocation["sharing"][1]
            return f"{owner_of(allocation)} has {had} as {_name_sharing(sharing)}"
    for claim in record["claims"].values():
        for device in list_held(claim):
            if _touches(device, request.uuid, home, placement):
                return f"{describe(claim)} has {device['uuid']}"
    return ""


def _is_shared_alike(key: str, allocation: Allocation, request: Request) -> bool:
    """Return whether an allocation of the same GPU is of the same device, given out in the same way."""
    if allocation["device"] != request.uuid:
        return False
    resource, _, name = key.partition(" ")
    if allocation["sharing"][0] == UNTOLD:
        return resource == request.resource and ("::" in name) == ("::" in request.id)
    return tuple(allocation["sharing"]) == request.sharing


def _touches(device: ClaimDevice, uuid: str, gpu: str, placement: str) -> bool:
    """Return whether a claim's device is this one or a part of it, or has, or had, its GPU instance."""
    if device["uuid"] == uuid:
        return True
    if device["gpu"] != gpu:
        return device["uuid"] == gpu
    is_same_placement = bool(placement) and device["placement"].partition("/")[0] == placement.partition("/")[0]
    return overlap(device["uuid"], uuid) or is_same_placement


def _name_sharing(sharing: tuple[str, str]) -> str:
    kind, name = sharing
    return f"{name} ({_KINDS.get(kind, kind)})" if kind else name


def grant_claim(record: Record, uid: str, claim: Claim) -> Record:
    """Return the record with what a claim gets instead of what it had.

    Args:
        record: of this boot.
        uid: of the claim.
        claim: with its devices.

    Raises:
        GpushimError: somebody else has one of them, all of it or a part.
    """
    adopted = record["claims"].get(describe(claim))  # what is lost is of pods that are over, and names come again
    former = describe(claim) if adopted and adopted["state"] != LOST else ""
    others = {key: other for key, other in record["claims"].items() if key not in (uid, former)}
    for device in list_held(claim):
        owner = (
            _find_claim_owner(others, device)
            or _find_pod_owner(record, device)
            or _find_excess(others, claim, device)
        )
        if owner:
            name = quote(f"{claim['namespace']}/{claim['name']}")
            raise GpushimError(f"claim {name} cannot have {device['uuid']} yet: {owner}", REQUEST)
    claims = {key: other for key, other in record["claims"].items() if key != former}
    return {**record, "claims": {**claims, uid: claim}}


def _find_claim_owner(claims: Mapping[str, Claim], device: ClaimDevice) -> str:
    """Return which of these claims has a device or a part of it, a clause; "" if none has."""
    for claim in claims.values():
        for had in list_held(claim):
            if had["uuid"] == device["uuid"] and "share" in had and "share" in device:
                continue
            is_same_name = (had["device"], had["gpu"]) == (device["device"], device["gpu"])  # of one not made yet
            if is_same_name or _touches(had, device["uuid"], device["gpu"], device["placement"]):
                if claim["state"] == LOST:
                    return describe_ending(claim)
                subject = "it" if had["uuid"] == device["uuid"] else had["uuid"]
                return f"{describe(claim)} has {subject}; delete that claim, or the pods that have it"
    return ""


def _find_excess(others: Mapping[str, Claim], claim: Claim, device: ClaimDevice) -> str:
    """Return that claims would have more of a device than there is, a clause; "" if not so."""
    held = [had for owner in (*others.values(), claim) for had in list_held(owner) if had["uuid"] == device["uuid"]]
    total = sum(had["share"]["memory"] for had in held if "share" in had)
    if "share" not in device or total <= device["share"]["of"]:
        return ""
    return f"its claims would have {total} MiB, and it has {device['share']['of']} MiB"


def _find_pod_owner(record: Record, device: ClaimDevice) -> str:
    """Return which pod has a claim's device or a part of it by the device plugin, a clause; "" if none has."""
    gpu = record["gpus"].get(device["gpu"])
    for allocation in gpu["allocations"].values() if gpu else ():
        placement = allocation["placement"].partition("/")[0]
        is_same_placement = bool(placement) and placement == device["placement"].partition("/")[0]
        if is_same_placement or overlap(allocation["device"], device["uuid"]):
            subject = "it" if allocation["device"] == device["uuid"] else allocation["device"]
            return f"{owner_of(allocation)} has {subject}"
    return ""
