"""The device plugin's view of kubelet: whether it has what it was told, and what it is to be told of the GPUs.

Out of scope: what kubelet is asked for the record (record/kubelet_watch.py), what it gets (registry.py), the
decisions (record/divisions.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.devices.changes import changing
from gpuplugin.kubelet import podresources, sockets
from gpuplugin.processes.tasks import until
from gpuplugin.record import allocations_file, divisions, transitions
from gpuplugin.record.kubelet_watch import TICK
from gpuplugin.settings import resources
from gpuplugin.snapshot import release
from gpushim.containers.kubelet import plugins
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.paths import trust

if TYPE_CHECKING:
    from gpuplugin.allocation.registry import Registry
    from gpuplugin.devices.changes import Devices
    from gpuplugin.settings.resources import Device
    from gpushim.ground.model import Snapshot

ASK = 10.0  # seconds between questions to kubelet, at most
ALONE = 60.0  # the same while there is no other plugin whose end could make kubelet forget, and no news to wait for
QUIET = transitions.QUIET


class KubeletView:
    """The view.

    Args:
        registry: what kubelet was told.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry, self._watch = registry, registry.watch
        registry.on_change, registry.on_refusal = self.look, self._hurry
        self._holders: tuple[object, object] = None, None  # the record; what claims have, and what is lost
        self._asked, self._pause = 0.0, 0.0  # time.monotonic() of the last question; seconds from that to the next
        self._wake: asyncio.Event | None = None  # in `keep`, for Python 3.9 ties it to the loop of that moment
        self._foreign_sockets: frozenset[Any] = frozenset()  # sockets of other plugins
        self._waits = True  # something in the record waits for kubelet, or for the end of a process

    async def keep(self) -> None:
        """Ask as long as the plugin runs.

        Sooner when a plugin's socket has come or gone: it may be a stranger with the same resource.
        """
        self._wake, self._foreign_sockets = asyncio.Event(), sockets.others(self.folder())
        while True:
            await until(self._wake, self._rest())
            self._wake.clear()
            await asyncio.sleep(TICK)
            foreign_sockets = sockets.others(self.folder())
            if foreign_sockets != self._foreign_sockets:  # inotify may not have told
                self._foreign_sockets = foreign_sockets
                self.note_foreign_socket()
            if due := self._due() <= 0:
                self._asked, self._pause = time.monotonic(), min(2 * self._pause or TICK, self._longest())
                await remind(self._registry, self._watch.kubelet_dir())
                await drop(self._registry, self._watch.kubelet_dir())
            with contextlib.suppress(GpushimError):  # a record that cannot be written: `decide` tells of it
                self._waits = await self._watch.follow(due)

    def look(self) -> None:
        """Wake the loop, which sees whether there is something to ask."""
        if self._wake:
            self._wake.set()

    def note_foreign_socket(self) -> None:
        """Take note that another plugin has come or gone."""
        self._hurry()
        for served in self._registry.served.values():
            served.endpoint.doubted = True

    def _hurry(self) -> None:
        self._pause = 0.0
        self.look()

    def _rest(self) -> float:
        """Return the seconds in which there is nothing to look at before somebody tells of it."""
        is_watched = self._registry.watched and not self._registry.instances.others()
        return max(0.0, self._due() - TICK) if is_watched and not self._waits else 0.0

    def _due(self) -> float:
        return self._asked + min(self._pause, self._longest()) - time.monotonic()

    def _longest(self) -> float:
        registry = self._registry
        waits = self._waits or any(served.resource.gone for served in registry.served.values())
        is_alone = registry.watched and not (waits or self._foreign_sockets or registry.instances.others())
        return ALONE if is_alone else ASK

    async def decide(self, desired: Devices, snapshot: Snapshot) -> dict[str, list[Device]]:
        """Return what kubelet is to be told, as `changes.settled`: not all is as `desired` if somebody has devices.

        Raises:
            GpushimError: the record cannot be written, or a newer version has written it.
        """
        file, instances, self._watch.snapshot = self._watch.file, self._registry.instances, snapshot
        file.prepare()
        instances.join(release.folder())
        units = resources.units(snapshot)
        record = file.read_current()
        former = divisions.with_former(record, units)
        if (
            self._watch.state.snapshot is None  # by which its checkpoint is understood
            or record["unknown"]
            or changing(divisions.list_served(record, former), desired, former)
        ):
            await self._watch.reconcile()
        with file.locked() as before:
            record = file.current(before)
            former = divisions.with_former(record, units)
            owners = divisions.find_owners(record)
            foreign = {uuid for uuid, owner in owners.items() if instances.lives(owner)}
            decision, last = divisions.decide(record, desired, former, foreign)
            record = divisions.divide(record, desired, last, decision, former, instances.number)
            if record != before or file.stuck:
                file.write(record)
        return decision.listed

    def folders(self) -> tuple[str, ...]:
        """Return the directories in which files tell what to look at again."""
        return system.state_dir(), release.folder(), allocations_file.folder()

    def identify(self, name: str) -> object:
        """Return what is another after a file of the state directory has changed, or by whom or how GPUs are had.

        That is what Allocate goes by, so that what it would refuse is told to kubelet before.
        """
        file, is_damaged = self._watch.file, True
        with contextlib.suppress(GpushimError):
            record = file.read()
            is_damaged = record is None
            if record is not None and record is not self._holders[0]:
                claims = frozenset(transitions.claims_by_uuid(record).items()), transitions.find_lost(record)
                self._holders = record, (claims, record["unknown"])
        return is_damaged, file.stuck, file.changes, self._holders[1], trust.identity(f"{system.state_dir()}/{name}")

    def folder(self) -> str:
        """Return kubelet's directory of device plugins."""
        return plugins(self._watch.kubelet_dir())


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


async def drop(registry: Registry, kubelet_dir: str) -> None:
    """Take devices off the list that the host has not, no pod has, and no Allocate can be under way for.

    They are refused, and told as Unhealthy, from the moment they were missed. The last Allocate that got one was
    answered before that, QUIET seconds ago or more, and kubelet has listed its pod since.
    """
    served = registry.served
    ripe = {
        name: entry.resource.gone
        for name, entry in served.items()
        if entry.resource.gone and entry.endpoint.listed and entry.resource.idle > QUIET
    }
    answer = await podresources.listed(kubelet_dir) if ripe else None
    if answer is None:
        return
    holders = answer.held()
    for name, missing in ripe.items():
        entry = served.get(name)
        if entry and entry.resource.idle > QUIET:
            entry.resource.drop(missing & entry.resource.gone - holders.get(name, {}).keys())
            if entry.resource.devices:
                entry.tell()
            else:
                registry.retire(name)
