"""What is wrong with devices, as Kubernetes and the log are told: taints in slices, and the health in pods' status;
and which taints a claim tolerates.

Out of scope: what is wrong with a GPU (gpuplugin.health), who has one (gpuplugin.record).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuplugin.dra.offered import NO_EXECUTE, NO_SCHEDULE, of_class
from gpuplugin.health import reason
from gpuplugin.record.transitions import list_allocations
from gpushim.containers.kubelet import OWN_DRIVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gpuplugin.dra.offered import Offered
    from gpuplugin.health.reason import Reason
    from gpuplugin.record.record_form import Record
    from gpushim.ground.model import Snapshot

PROBLEM, PLUGIN = "problem", "device-plugin"  # ends of keys, beside the kinds of reasons
LAYOUT = f"{OWN_DRIVER}/{reason.LAYOUT}"
HEALTH = "is unhealthy", "is healthy again"
LENGTH = 1024  # bytes of a message, of which kubelet reads so many
TIMEOUT = 60  # seconds after which a device of which nothing is heard is Unknown; dra.REPEAT three times


def taints(
    reasons: Mapping[str, Sequence[Reason]],
    snapshot: Snapshot,
    record: Record | None,
    effect: str,
    unfinished: Collection[str] = (),
) -> dict[str, list[dict[str, str]]]:
    """Return the taints of GPUs and MIG instances, by UUID; at most one of each key.

    Args:
        reasons: why they are unhealthy, by UUID.
        snapshot: of the host's inventory.
        record: of who has what, None where it is not known.
        effect: one of offered.EFFECTS; NO_SCHEDULE at most for a GPU whose health is unknown, as it is not watched,
            and in any case for one that waits for its MIG layout.
        unfinished: UUIDs of what is still as a claim that is over had it.
    """
    by_uuid = {uuid: [*row] for uuid, row in of_health(reasons, effect).items()}
    for uuid in {*problems(snapshot), *unfinished}:  # also beside a reason, whose effect may be none
        by_uuid.setdefault(uuid, []).append(_taint(PROBLEM, "", NO_SCHEDULE))
    for uuid in _find_allocated(record, snapshot):
        by_uuid.setdefault(uuid, []).append(_taint(PLUGIN, "allocated", NO_SCHEDULE))
    return by_uuid


def of_health(reasons: Mapping[str, Sequence[Reason]], effect: str) -> dict[str, list[dict[str, str]]]:
    """Return the taints of GPUs and MIG instances that are unhealthy; as `taints`."""
    by_uuid: dict[str, dict[str, dict[str, str]]] = {}
    for uuid, row in reasons.items():
        for cause in row:
            # These evict nobody.
            mild = cause.kind == reason.LAYOUT or (cause.kind == "unwatched" and effect == NO_EXECUTE)
            taint = _taint(cause.kind, str(cause.number) if cause.number else "", NO_SCHEDULE if mild else effect)
            by_uuid.setdefault(uuid, {}).setdefault(cause.kind, taint)
    return {uuid: [*row.values()] for uuid, row in by_uuid.items()}


def _taint(kind: str, value: str, effect: str) -> dict[str, str]:
    return {"key": f"{OWN_DRIVER}/{kind}", **({"value": value} if value else {}), "effect": effect}


def untolerated(
    tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Mapping[str, str]], is_held: bool = False
) -> list[Mapping[str, str]]:
    """Return the taints that keep a device from a claim.

    Args:
        tolerations: of its allocation, as the API server has accepted them.
        taints: of the device. That it waits to be cut nobody can tolerate, for it may be cut at any moment.
        is_held: the claim has it already, so that it is not cut.
    """
    return [taint for taint in taints if (not is_held if taint["key"] == LAYOUT else _keeps_away(taint, tolerations))]


def _keeps_away(taint: Mapping[str, str], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    is_strong = taint["effect"] in (NO_SCHEDULE, NO_EXECUTE)
    return is_strong and not any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect not in ("", taint["effect"]) or key not in ("", taint["key"]):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == taint.get("value", "")


def problems(snapshot: Snapshot) -> dict[str, str]:
    """Return what the snapshot says is wrong with GPUs, and so with their MIG instances, by UUID."""
    sick = {gpu["index"]: gpu["problem"] for gpu in snapshot["gpus"] if gpu["problem"]}
    sentences = {gpu["uuid"]: sick[gpu["index"]] for gpu in snapshot["gpus"] if gpu["index"] in sick}
    return {**sentences, **{mig["uuid"]: sick[mig["gpu"]] for mig in snapshot["mig"] if mig["gpu"] in sick}}


def _find_allocated(record: Record | None, snapshot: Snapshot) -> Iterable[str]:
    """Return the UUIDs of what containers have by the device plugin, with the MIG instances of such a GPU."""
    held_uuids = {allocation["device"] for _, _, allocation in list_allocations(record)} if record else set()
    gpus = {gpu["index"] for gpu in snapshot["gpus"] if gpu["uuid"] in held_uuids}
    return sorted(held_uuids | {mig["uuid"] for mig in snapshot["mig"] if mig["gpu"] in gpus})


def log(before: Mapping[str, str], offered: Iterable[Offered], sentences: Mapping[str, str]) -> dict[str, str]:
    """Log what has become unhealthy, and what is healthy again.

    Args:
        before: what this returned last.
        offered: the devices.
        sentences: sentences by UUID of those that are not well.
    """
    classes = {device.uuid: of_class(device.name) for device in offered}
    problems = {uuid: sentences.get(uuid, "") for uuid in classes}
    reason.log(before, problems, classes, HEALTH)
    return problems


def health(offered: Iterable[Offered], pool: str, sentences: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return DeviceHealth messages.

    Args:
        offered: the devices.
        pool: their pool.
        sentences: sentences by UUID of those that are not well.
    """
    from gpuplugin.kubelet.dra import HEALTHY, UNHEALTHY  # with grpcio, which commands do without

    return [
        {
            "device": {"pool_name": pool, "device_name": device.name},
            "health": UNHEALTHY if device.uuid in sentences else HEALTHY,
            "last_updated_time": int(time.time()),
            "health_check_timeout_seconds": TIMEOUT,
            "message": sentences.get(device.uuid, "").encode()[:LENGTH].decode(errors="ignore"),
        }
        for device in offered
    ]
