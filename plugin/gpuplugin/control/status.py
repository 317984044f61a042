"""The plugin's state in words that a program reads: what there is of each resource, what is wrong, who has what.

Replicas are counted, not listed: a node may have 60 000. Out of scope: how it is asked for (control.py) and shown
(gpushim.cli.device_plugin).
"""

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
    """Take of a resource what `resources` needs; quick, for it runs where kubelet's calls do."""
    one = served.resource
    devices, allocated = (*one.devices.values(),), (*one.allocated,)
    shown = {"name": one.name, "told": served.endpoint.listed, "devices": devices, "allocated": allocated}
    return {**shown, "since": {**one.since}}


def resources(taken: Iterable[Mapping[str, Any]], reasons: Reasons, holders: Sequence[Holder] | None) -> Any:
    """List resources with their devices, each GPU or MIG instance once.

    Args:
        taken: of each, by `resource`.
        reasons: why devices are sick, beside what the snapshot says.
        holders: who has what, or None if kubelet does not say.
    """
    return [
        {
            "name": one["name"],
            "registered": one["told"],
            "devices": _devices(one["devices"], one["since"], reasons, _held(one["name"], holders)),
            "allocated": [{"at": at, "devices": [*ids]} for at, ids in reversed(one["allocated"])],
        }
        for one in taken
    ]


def _held(name: str, holders: Sequence[Holder] | None) -> set[str] | None:
    if holders is None:
        return None
    return {device for one in holders if one["resource"] == name for device in one["devices"]}


def _devices(
    devices: Iterable[Device], since: Mapping[str, float], reasons: Reasons, held: set[str] | None
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    boot = time.time() - system.clock()
    for one in devices:
        row = found.get(one.uuid)
        if row is None:
            row = found[one.uuid] = {
                "uuid": one.uuid,
                "index": one.index,
                "replicas": 0,
                "held": None if held is None else 0,
                "healthy": not one.problem,
                "problem": one.problem,
                "since": boot + since[one.uuid] if one.uuid in since else None,
                "reasons": [
                    {"kind": why.kind, "text": why.text, "since": why.when, "until": why.until}
                    for why in reasons.get(one.uuid, ())
                ],
            }
        row["replicas"] += 1
        if held is not None:
            row["held"] += one.id in held
    return [*found.values()]
