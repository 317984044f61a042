"""Print the resources that would be registered with kubelet, and why.

Changes nothing except a snapshot that is out of date, as a create would; not even that if refresh is false.
Out of scope: kubelet; if it does not run, a note says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.allocation.offer import absent, offered
from gpuplugin.halves import PLUGIN
from gpuplugin.record.allocations_file import AllocationsFile, summarize
from gpuplugin.settings import resources, sharing
from gpuplugin.snapshot import node_snapshot
from gpushim.cli import show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplugin.settings.resources import Device
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

    ListAllocators = Callable[[Settings, Snapshot], list[str]]  # sentences

NOT_REGISTERED = (
    "fronts has no device-plugin, so kubelet has none of this registered: gpushim-dra-driver --check says what "
    "claims can have"
)
COLUMNS = ("DEVICE", "IS", "NUMA", "CANNOT BE GIVEN OUT, BECAUSE")


def print_check(settings: Settings, list_allocators: ListAllocators) -> None:
    """Print the resources, their devices, how containers get them, and the sentences of `list_allocators`.

    Raises:
        GpushimError: nothing would be registered.
    """
    notes = settings.notes[:]
    if PLUGIN not in settings.values["fronts"]:
        notes.append(NOT_REGISTERED)
    try:
        snapshot = node_snapshot.current()
        offers, delivery = offered(snapshot, settings, notes)
        notes += absent(settings) + list_allocators(settings, snapshot)
        notes += filter(None, [resources.left_out(snapshot, settings.values["exclude"])])
    finally:
        for note in notes:
            show.say(f"note: {note}")
    for name, devices in offers.items():
        usable = [device for device in devices if not device.problem]
        show.say(f"{name}: {len(usable)} of {len(devices)} can be given out")
        for line in sharing.describe(devices):
            show.say(f"shared: {line}")
        show.table(COLUMNS, _list_rows(devices))
        show.say()
    if not offers:
        show.say("nothing is registered: this host has no GPU to give out")
    name_kind = "index" if delivery.by_index else "UUID"
    show.say(f"Containers get their devices by {', '.join(delivery.strategies)}; devices are named by {name_kind}.")
    show.say(summarize(AllocationsFile()))
    if delivery.features or delivery.imex:
        extras = [*delivery.features, *(f"IMEX channel {channel}" for channel in delivery.imex)]
        show.say(f"Every container gets {', '.join(extras)}, too.")


def _list_rows(devices: Sequence[Device]) -> list[list[str]]:
    return [
        [device.id, device.index, str(device.numa) if device.numa >= 0 else "", device.problem] for device in devices
    ]
