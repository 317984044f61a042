"""What root is told of the device plugin's resources. Replicas are counted, not listed: a node may have 60 000."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpushim.ground import system

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplugin.allocation.registry import Served
    from gpuplugin.health.reason import Reason
    from gpuplugin.kubelet.podresources import Holder
    from gpuplugin.settings.resources import Device

    Reasons = Mapping[str, Sequence[Reason]]  # by UUID of a GPU or MIG instance


def resource(served: Served) -> dict[str, Any]:
    """Copy the data of a resource that `resources` needs; quick, for it runs where kubelet's calls do."""
    resource = served.resource
    devices, allocated = (*resource.devices.values(),), (*resource.allocated,)
    fields = {"name": resource.name, "told": served.endpoint.listed, "devices": devices, "allocated": allocated}
    return {**fields, "since": {**resource.since}}


def resources(copies: Iterable[Mapping[str, Any]], reasons: Reasons, holders: Sequence[Holder] | None) -> Any:
    """Return resources with their devices, each GPU or MIG instance once.

    Args:
        copies: of each, by `resource`.
        reasons: why devices are sick, beside what the snapshot says.
        holders: of kubelet's list, or None if kubelet does not answer.
    """
    return [
        {
            "name": copy["name"],
            "registered": copy["told"],
            "devices": _devices(copy["devices"], copy["since"], reasons, _held_ids(copy["name"], holders)),
            "allocated": [{"at": at, "devices": [*ids]} for at, ids in reversed(copy["allocated"])],
        }
        for copy in copies
    ]


def _held_ids(name: str, holders: Sequence[Holder] | None) -> set[str] | None:
    if holders is None:
        return None
    return {device for holder in holders if holder["resource"] == name for device in holder["devices"]}


def _devices(
    devices: Iterable[Device], since: Mapping[str, float], reasons: Reasons, held_ids: set[str] | None
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    boot = time.time() - system.clock()
    for device in devices:
        row = rows.get(device.uuid)
        if row is None:
            row = rows[device.uuid] = {
                "uuid": device.uuid,
                "index": device.index,
                "replicas": 0,
                "held": None if held_ids is None else 0,
                "healthy": not device.problem,
                "problem": device.problem,
                "since": boot + since[device.uuid] if device.uuid in since else None,
                "reasons": [
                    {"kind": reason.kind, "text": reason.text, "since": reason.when, "until": reason.until}
                    for reason in reasons.get(device.uuid, ())
                ],
            }
        row["replicas"] += 1
        if held_ids is not None:
            row["held"] += device.id in held_ids
    return [*rows.values()]
