"""What would be registered at kubelet, and why, in lines for people.

Changes nothing but a snapshot that is out of date, as a create would; not even that if refresh is false.
Out of scope: kubelet; where it is not there, a note says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.allocation.offer import absent, offered
from gpuplugin.record.allocations_file import AllocationsFile, summarize
from gpuplugin.settings import resources, sharing
from gpuplugin.snapshot import node_snapshot
from gpushim.cli import show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplugin.settings.resources import Device
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

    Others = Callable[[Settings, Snapshot], list[str]]  # sentences

COLUMNS = ("DEVICE", "IS", "NUMA", "CANNOT BE GIVEN OUT, BECAUSE")


def tell(settings: Settings, others: Others) -> None:
    """Print it.

    Args:
        settings: in force.
        others: says who else gives out GPUs.

    Raises:
        GpushimError: nothing would be registered.
    """
    notes = settings.notes[:]
    try:
        snapshot = node_snapshot.current()
        found, ways = offered(snapshot, settings, notes)
        notes += absent(settings) + others(settings, snapshot)
        notes += filter(None, [resources.left_out(snapshot, settings.values["exclude"])])
    finally:
        for note in notes:
            show.say(f"note: {note}")
    for name, devices in found.items():
        well = [device for device in devices if not device.problem]
        show.say(f"{name}: {len(well)} of {len(devices)} can be given out")
        for line in sharing.describe(devices):
            show.say(f"shared: {line}")
        show.table(COLUMNS, _rows(devices))
        show.say()
    if not found:
        show.say("nothing is registered: this host has no GPU to give out")
    show.say(f"Containers get their devices by {', '.join(ways.ways)}; devices are named by {_names(ways.by_index)}.")
    show.say(summarize(AllocationsFile()))
    if ways.features or ways.imex:
        beside = [*ways.features, *(f"IMEX channel {channel}" for channel in ways.imex)]
        show.say(f"Every container gets {', '.join(beside)}, too.")


def _rows(devices: Sequence[Device]) -> list[list[str]]:
    return [[one.id, one.index, str(one.numa) if one.numa >= 0 else "", one.problem] for one in devices]


def _names(by_index: bool) -> str:
    return "index" if by_index else "UUID"
