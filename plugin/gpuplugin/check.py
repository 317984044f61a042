"""What would be registered at kubelet, and why, in lines for people.

Changes nothing but a snapshot that is out of date, as a create would. Out of scope: kubelet, which need not be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.offer import offered, ways
from gpushim import stamp
from gpushim.inventory import renew

if TYPE_CHECKING:
    from gpuplugin.settings import Settings


def check(settings: Settings) -> list[str]:
    """Say what would be registered, and why, in lines for people.

    Args:
        settings: in force.

    Raises:
        GpushimError: nothing would be.
    """
    snapshot = renew.snapshot(stamp.config_path(), stamp.state_dir())
    notes = list(settings.notes)
    found = offered(snapshot, settings, notes)
    lines = []
    for name, devices in found.items():
        well = [device for device in devices if not device.problem]
        lines.append(f"{name}: {len(devices)}, of which {len(well)} can be given out")
        lines += [f"  {one.id}  {one.index}" + (f"  {one.problem}" if one.problem else "") for one in devices]
    told = ways(settings, snapshot)
    lines.append(f"containers are told by {', '.join(told.ways)}, by {'index' if told.by_index else 'UUID'}")
    return [*(lines if found else ["nothing: this host has no GPU to give out"]), *notes]
