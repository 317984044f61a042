"""What becomes of an allocation and a claim. Pure.

    an allocation            by                                                          becomes
    none                     Allocate                                                    granted
    any                      kubelet lists it                                            confirmed
    any                      kubelet's checkpoint alone has it                           unconfirmed
    any                      kubelet does not have it; a process is left (GRACE)         lost
    any                      kubelet does not have it; no process is left (QUIET)        released
    any                      a boot, unless kubelet's checkpoint has it                  released

    a claim                  by                                                          becomes
    none, or any             Prepare                                                     granted
    granted                  kubelet lists it, or has it in its file                     confirmed
    any                      Unprepare, or kubelet does not have it (QUIET), and
                             - a process of its pods is left (GRACE)                     lost
                             - its sharing or its MIG instance is not undone             lost
                             - nothing is left                                           released

What kubelet has, and the record lost, is recorded again as confirmed or unconfirmed. A start of kubelet releases
nothing: its checkpoint has what its pods had, and what it has forgotten is lost until its last process has ended, as
is a pod's that was deleted by force. An init container's device is in the checkpoint and never listed; of a kubelet
without an API server that holds for all but static pods. Where neither list nor checkpoint can be read, everything
stays as it is.
Out of scope: what is granted (grants.py), the file (allocations_file.py), what kubelet has (kubelet_state.py), who
asks (kubelet_watch.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.devices import changes
from gpuplugin.devices.changes import UNNAMED, is_instance, way_of
from gpuplugin.record.kubelet_state import name_claim
from gpuplugin.record.record_form import CONFIRMED, LOST, UNCONFIRMED, is_made
from gpuplugin.settings.resources import GONE
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gpuplugin.devices.changes import Units
    from gpuplugin.record.kubelet_state import KubeletState
    from gpuplugin.record.record_form import Allocation, Claim, ClaimDevice, Gpu, Record

GRACE = 5.0  # seconds in which the processes of a pod that kubelet has ended may be left, and nothing is wrong
QUIET = 10.0  # seconds after a grant in which kubelet may not have it yet


def list_allocations(record: Record) -> Iterator[tuple[str, str, Allocation]]:
    """Yield resource, id and allocation."""
    for gpu in record["gpus"].values():
        for key, allocation in gpu["allocations"].items():
            resource, _, name = key.partition(" ")
            yield resource, name, allocation


def list_held(claim: Claim) -> list[ClaimDevice]:
    """Return the devices, or parts of devices, that others cannot have: all but those that it only looks at."""
    return [device for device in claim["devices"] if not device["admin"]]


def list_made(claim: Claim) -> list[ClaimDevice]:
    """Return the devices of a claim that were, or are being, made for it in this boot."""
    return [
        device
        for device in list_held(claim)
        if is_made(device) and (claim["since"] or device["uuid"].lower() != device["device"])
    ]


def list_made_names(record: Record | None) -> frozenset[str]:
    """Return the names of the devices that were, or are being, made for claims in this boot."""
    claims = record["claims"].values() if record else ()
    return frozenset(device["device"] for claim in claims for device in list_made(claim))


def claims_by_uuid(record: Record) -> dict[str, str]:
    """Return the names of claims by UUID of what they have."""
    return {device["uuid"]: describe(claim) for claim in record["claims"].values() for device in list_held(claim)}


def find_admin_claims(record: Record | None) -> frozenset[tuple[str, str, str]]:
    """Return what claims only look at: namespace and name of the claim, and name of the device."""
    names: dict[bool, set[tuple[str, str, str]]] = {True: set(), False: set()}
    for claim in record["claims"].values() if record else ():
        for device in claim["devices"]:
            names[device["admin"]].add((claim["namespace"], claim["name"], device["device"]))
    return frozenset(names[True] - names[False])


def describe(claim: Claim) -> str:
    return name_claim(claim["namespace"], claim["name"], claim["driver"])


def is_own(uid: str, claim: Claim) -> bool:
    """Return whether a claim was prepared here, or its uid is known; others have their names as keys."""
    return uid != describe(claim)


def owner_of(allocation: Allocation) -> str:
    """Return who has it, for a sentence."""
    pod = allocation["pod"] or (f"{UNNAMED}{allocation['uid']}" if allocation["uid"] else "")
    return pod or "a container, by device-plugin"


def find_lost(record: Record) -> dict[str, dict[str, str]]:
    """Return why lost allocations, which kubelet would give out once more, are not; by resource and id."""
    sentences: dict[str, dict[str, str]] = {}
    for resource, name, allocation in list_allocations(record):
        if allocation["state"] == LOST:
            sentences.setdefault(resource, {})[name] = changes.ending(owner_of(allocation))
    return sentences


def find_lost_claims(record: Record, reasons: Mapping[str, str] = {}) -> dict[str, str]:
    """Return why what lost claims have is not free yet, by UUID; the scheduler may know nothing of them.

    A part of a device that others share is counted in the record, and taints nothing.

    Args:
        record: of this boot.
        reasons: by uid of the claim, where they are known.
    """
    return {
        device["uuid"]: reasons.get(uid) or describe_ending(claim)
        for uid, claim in record["claims"].items()
        if claim["state"] == LOST
        for device in list_held(claim)
        if "share" not in device
    }


def describe_ending(claim: Claim) -> str:
    """Return why what a lost claim has is not free yet."""
    name = quote(f"claim {claim['namespace']}/{claim['name']}")
    owner = name + (f" of {UNNAMED}{claim['pods'][0]}" if claim["pods"] else "")
    if claim["sharing"] or list_made(claim):
        return f"{owner} has it until its processes have ended, and its sharing or MIG instance is undone"
    return changes.ending(owner)


def find_owners(record: Record, keys: Collection[str], kubelet: KubeletState) -> dict[str, str]:
    """Return the uids of the pods that have, or had, these "RESOURCE ID"; kubelet knows them before the record."""
    owners = {
        key: gpu["allocations"][key]["uid"] or kubelet.find_uid(key)
        for gpu in record["gpus"].values()
        for key in keys
        if key in gpu["allocations"]
    }
    return {key: uid for key, uid in owners.items() if uid}


def find_suspects(record: Record, kubelet: KubeletState) -> frozenset[str]:
    """Return the uids of pods that have something by the record or the checkpoint alone, not by both."""
    uids = {
        allocation["uid"]
        for resource, name, allocation in list_allocations(record)
        if allocation["uid"] and not kubelet.find_pod(resource, name)
    }
    uids |= {
        pod for uid, claim in record["claims"].items() if not kubelet.has_claim(uid, claim) for pod in claim["pods"]
    }
    keys = {
        f"{resource} {name}"
        for resource, name, allocation in list_allocations(record)
        if allocation["uid"] or kubelet.find_pod(resource, name)
    }
    return frozenset(uids) | {entry.uid for key, entry in (kubelet.checkpoint or {}).items() if key not in keys}


def reconcile(record: Record, kubelet: KubeletState, running: Mapping[str, float], units: Units) -> Record:
    """Return the record after kubelet has told what it has.

    Args:
        record: of this boot.
        kubelet: what it has.
        running: uids of the pods of which a process is left, of `find_suspects`, and for how many seconds that has
            been so.
        units: GPUs and MIG instances of this host, by UUID; none where they are not known.
    """
    gpus: dict[str, Gpu] = {}
    for uuid, gpu in record["gpus"].items():
        moved = (
            (key, move_allocation(key, allocation, kubelet, running))
            for key, allocation in gpu["allocations"].items()
        )
        gpus[uuid] = {**gpu, "allocations": {key: allocation for key, allocation in moved if allocation}}
    claims: dict[str, Claim] = {}
    for uid, claim in record["claims"].items():
        moved_claim = move_claim(uid, claim, kubelet, running)
        if moved_claim:
            claims[uid] = moved_claim
    unknown = record["unknown"] if not kubelet.tells_all else ""
    return _adopt({**record, "gpus": gpus, "claims": claims, "unknown": unknown}, kubelet, running, units)


def move_allocation(
    key: str, allocation: Allocation, kubelet: KubeletState, running: Mapping[str, float]
) -> Allocation | None:
    """Return an allocation after kubelet has told what it has; None if it is released."""
    resource, _, name = key.partition(" ")
    pod, uid = kubelet.find_pod(resource, name), kubelet.find_uid(key)
    if kubelet.written <= allocation["since"] and uid != allocation["uid"]:
        uid = ""  # it may be of the pod before
    if pod:
        return _confirm(allocation, pod, uid)
    if uid and not _is_outdated(uid, kubelet, running):
        pod = allocation["pod"] if allocation["uid"] in ("", uid) else ""
        state = UNCONFIRMED if kubelet.answers or allocation["state"] != CONFIRMED else CONFIRMED
        return {**allocation, "pod": pod, "uid": uid, "state": state}
    if allocation["uid"] in running:
        return {**allocation, "state": LOST} if _is_forgotten(running[allocation["uid"]], kubelet) else allocation
    return None if _has_ended(allocation, kubelet) else allocation


def _confirm(allocation: Allocation, pod: str, uid: str) -> Allocation:
    """Return an allocation that kubelet lists: the pod's uid, where it is not told, is that of its name before."""
    is_same = allocation["pod"] in ("", pod)
    return {**allocation, "pod": pod, "uid": uid or (allocation["uid"] if is_same else ""), "state": CONFIRMED}


def _is_forgotten(seconds: float, kubelet: KubeletState) -> bool:
    """Return whether kubelet has forgotten a pod, of which a process has been left for so many seconds."""
    has_started_without = kubelet.runs and kubelet.is_young and kubelet.checkpoint is None
    is_conclusive = kubelet.checkpoint is not None or has_started_without
    return is_conclusive and (kubelet.is_new or seconds >= GRACE)


def _is_outdated(uid: str, kubelet: KubeletState, running: Collection[str]) -> bool:
    """Return whether an ended pod is still in kubelet's checkpoint, as no plugin makes kubelet write that anew."""
    return kubelet.is_stale and kubelet.lists_all and uid not in running


def _has_ended(allocation: Allocation, kubelet: KubeletState) -> bool:
    """Return whether an allocation without pod and process is old enough that kubelet would show who has it."""
    limit = kubelet.clock - QUIET
    if kubelet.checkpoint is None or kubelet.is_stale:
        return kubelet.lists_all and allocation["since"] <= limit
    return allocation["since"] <= min(limit, kubelet.written)


def move_claim(uid: str, claim: Claim, kubelet: KubeletState, running: Mapping[str, float]) -> Claim | None:
    """Return a claim after kubelet has told what it has; None if it is released.

    kubelet has each claim in its file from before it asks the driver until the driver has undone it; it lists neither
    one that an init container uses nor, after its start, all others. A file that is empty is a new one's, which says
    nothing of claims whose pods are not known.
    """
    if kubelet.has_claim(uid, claim):
        return claim if claim["state"] == LOST else {**claim, "state": CONFIRMED}
    is_prepared = claim["driver"] == OWN_DRIVER and is_own(uid, claim)
    is_conclusive = kubelet.claim_uids is not None or (kubelet.lists_all and not is_prepared)
    if not is_conclusive or claim["since"] > kubelet.clock - QUIET:
        return claim
    if any(pod in running for pod in claim["pods"]):
        is_ending = max(running.get(pod, 0.0) for pod in claim["pods"]) < GRACE
        return claim if is_ending else {**claim, "state": LOST}
    # What it shares, or was made for it, ends before its GPUs are free (dra/prepare.py).
    if claim["sharing"] or list_made(claim):
        return {**claim, "state": LOST}
    return None if claim["pods"] or kubelet.claim_uids or not is_prepared else claim


def _adopt(record: Record, kubelet: KubeletState, running: Collection[str], units: Units) -> Record:
    """Return the record with what kubelet has and nobody has written down, of devices that this host has.

    Of one that it has no more, a pod that runs since before that may have the nodes.
    """
    gpu_uuids = {unit.gpu: unit.uuid for unit in units.values() if not is_instance(unit.uuid)}
    gpus = dict(record["gpus"])
    for key, (pod, uid) in kubelet.list_devices().items():
        name = key.partition(" ")[2]
        unit = units.get(name.partition("::")[0])
        home = gpu_uuids.get(unit.gpu, "") if unit else ""
        gpu: Gpu = gpus.get(home, {"divisions": {}, "allocations": {}})
        if not unit or not home or key in gpu["allocations"] or (unit.problem == GONE and uid not in running):
            continue
        if not pod and _is_outdated(uid, kubelet, running):
            continue
        allocation: Allocation = {
            "device": unit.uuid,
            "placement": unit.placement,
            "sharing": [*_find_sharing(key, unit.uuid, gpu, kubelet)],
            "pod": pod,
            "uid": uid,
            "state": CONFIRMED if pod else UNCONFIRMED,
            "since": 0.0,  # nobody knows
        }
        gpus[home] = {**gpu, "allocations": {**gpu["allocations"], key: allocation}}
    return {
        **record,
        "gpus": gpus,
        "claims": {**record["claims"], **kubelet.unrecorded_claims(record["claims"], units)},
    }


def _find_sharing(key: str, uuid: str, gpu: Gpu, kubelet: KubeletState) -> tuple[str, str]:
    """Return the way in which an id was given out: by its division, else by what kubelet has of the answer."""
    resource, _, name = key.partition(" ")
    part = gpu["divisions"][uuid]["parts"].get(resource) if uuid in gpu["divisions"] else None
    if part and part["numbered"] == ("::" in name):
        share = part["share"] or {}
        return way_of(resource, part["numbered"], share.get("kind", ""), share.get("group", ""))
    kind, group = kubelet.find_share(key)
    return way_of(resource, "::" in name, kind, group)
