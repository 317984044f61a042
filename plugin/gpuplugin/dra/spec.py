"""What is offered by the settings, and which of it engines do not find by the names that claims are told.

Those are what the node's own CDI spec lacks.
Out of scope: who writes the spec (gpushim.cdi.generate), and whether another has the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import memory_limits
from gpuplugin.devices import division
from gpuplugin.devices.changes import is_instance
from gpuplugin.dra import offered
from gpuplugin.dra.offered import Parts
from gpuplugin.settings.sharing import TIME_SLICING
from gpushim.cdi.generate import output, publish
from gpushim.containers.kubelet import OWN_DRIVER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.dra.offered import Offered
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

WHY = (
    "no claim is given a GPU that {path} does not have, such as {uuid}: under [cdi], write-spec must be true and "
    "device-names have uuid; then run gpushim refresh"
)
RIVAL = (
    f"another driver {OWN_DRIVER} listens at {{}}, so gpushim gives out no GPUs by claim on this node; remove one of "
    "the two from it"
)


def excluded(values: Mapping[str, Any]) -> list[str]:
    """Return what of the setting `exclude` claims do not get; the device plugin has `on-demand` in it, too."""
    return [text for text in values["exclude"] if text not in values["on-demand"]]


def devices(snapshot: Snapshot, settings: Settings) -> tuple[list[Offered], frozenset[str], str]:
    """List the devices that the settings leave, and what the spec lacks of them, as `missing`.

    Args:
        snapshot: of the host's inventory.
        settings: in force.

    Raises:
        GpushimError: an entry of `exclude` names no device, or groups of sharing do not fit the host.
    """
    values = settings.values
    is_spread = values["allocation-policy"] == "distributed"
    parts = _find_parts(snapshot, settings)
    offered_devices = offered.devices(snapshot, excluded(values), is_spread, parts=parts)
    return offered_devices, *missing(snapshot, [device.uuid for device in offered_devices])


def _find_parts(snapshot: Snapshot, settings: Settings) -> dict[str, Parts]:
    """Return how claims share the devices of groups of sharing, by UUID.

    An MPS daemon with limits for each client would bound those who ask for more: its GPUs stay whole.
    """
    by_driver = not memory_limits.missing(snapshot)
    sizes = {gpu["uuid"]: gpu["memory"] for gpu in snapshot["gpus"]}
    parts = {}
    for uuid, share in division.shares(snapshot, settings).items():
        limit = offered.CONTAINER if by_driver and not is_instance(uuid) else offered.NOBODY
        if share.kind == TIME_SLICING:
            parts[uuid] = Parts(limit)
        elif share.threads == offered.THREADS and share.memory == sizes[uuid] and not share.sliced:
            parts[uuid] = Parts(offered.CONTAINER if by_driver else offered.PROCESS, share.group)
    return parts


def missing(snapshot: Snapshot, uuids: Collection[str]) -> tuple[frozenset[str], str]:
    """List devices that the spec does not have, and say what to do; a sick GPU is rightly not there.

    Args:
        snapshot: of the host's inventory.
        uuids: of GPUs and MIG instances.

    Returns:
        UUIDs, and a sentence, which is "" if there are none.
    """
    sick = {gpu["index"]: gpu["uuid"] for gpu in snapshot["gpus"] if gpu["problem"]}
    sick_migs = {mig["uuid"] for mig in snapshot["mig"] if mig["gpu"] in sick}
    path = output.path_of(snapshot["policy"])
    spec_names = {device["name"] for device in (publish.saved(path) or {"devices": ()})["devices"]}
    lacking = frozenset(uuids) - spec_names - {*sick.values()} - sick_migs
    return lacking, WHY.format(path=path, uuid=min(lacking)) if lacking else ""
