"""What kubelet has, against what it was told: it is told again what it has forgotten, and what is gone is taken off.

Out of scope: when it is asked (kubelet_view.py), the lists themselves (offer.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.kubelet import podresources
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from gpuplugin.allocation.registry import Registry


async def remind(registry: Registry, kubelet_dir: str) -> None:
    """Register again what kubelet reads the list of and has nothing of: another plugin's end made it forget."""
    served = registry.served
    registered = {name: entry.resource.well for name, entry in served.items() if entry.endpoint.settled}
    has = await podresources.allocatable(kubelet_dir) if any(registered.values()) else None
    if has is None:
        return
    for name, usable_ids in registered.items():
        entry = served.get(name)
        if entry and entry.endpoint.settled and usable_ids and usable_ids.isdisjoint(has.get(name, ())):
            logger.warning("kubelet has lost its devices of %s; sending them again", name)
            entry.endpoint.forgotten()


async def drop(registry: Registry, kubelet_dir: str, quiet: float) -> None:
    """Take devices off the list that the host has not, no pod has, and no Allocate can be under way for.

    They are refused, and told as Unhealthy, from the moment they were missed. The last Allocate that got one was
    answered before that, `quiet` seconds ago or more, and kubelet has listed its pod since.
    """
    served = registry.served
    ripe = {
        name: entry.resource.gone
        for name, entry in served.items()
        if entry.resource.gone and entry.endpoint.listed and entry.resource.idle > quiet
    }
    answer = await podresources.listed(kubelet_dir) if ripe else None
    if answer is None:
        return
    holders = answer.held()
    for name, missing in ripe.items():
        entry = served.get(name)
        if entry and entry.resource.idle > quiet:
            entry.resource.drop(missing & entry.resource.gone - holders.get(name, {}).keys())
            if entry.resource.devices:
                entry.tell()
            else:
                registry.retire(name)
