"""What kubelet is asked again and again: whether it has what it was told, who has what is gone, and who has what.

The last goes into the book, with what is decided for it: that outlives this process. It is asked when there is news,
and now and then: a question costs both sides some milliseconds.
Out of scope: how it is asked (podresources.py), its starts (kubelet_starts.py), what it gets (registry.py,
reconcile.py), the decisions (changes.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import reconcile
from gpuplugin.book import book, by_device, checkpoints, claimed, evidence, listed
from gpuplugin.book.evidence import Evidence
from gpuplugin.book.kubelet_starts import Starts
from gpuplugin.devices.changes import changing
from gpuplugin.kubelet import cgroups, podresources, sockets
from gpuplugin.processes.tasks import until
from gpuplugin.settings import resources
from gpuplugin.snapshot import release
from gpushim.containers.kubelet import plugins
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.allocation.registry import Registry
    from gpuplugin.book.checkpoints import Remembered
    from gpuplugin.book.page import Page
    from gpuplugin.devices.changes import Devices, Held, Units
    from gpuplugin.settings.resources import Device
    from gpushim.ground.model import Snapshot

ASK = 10.0  # seconds between questions to kubelet, at most
ALONE = 60.0  # the same while there is no other plugin whose end could make kubelet forget, and no news to wait for
TICK = 1.0  # seconds between looks at what nobody tells of, and to the first question after a change
QUIET = 10.0  # seconds after an Allocate, or kubelet's start, in which nothing is free because no pod is listed


class Questions:
    """The questions.

    Args:
        registry: what kubelet was told.
        kubelet_dir: returns kubelet's directory, which settings may change.
        heeds: says whether what DRA drivers gave counts.
    """

    def __init__(
        self, registry: Registry, kubelet_dir: Callable[[], str], heeds: Callable[[], bool] = lambda: True
    ) -> None:
        self._registry, self._kubelet_dir, self._heeds = registry, kubelet_dir, heeds
        self._starts = Starts(registry.book, kubelet_dir, self._hurry)
        registry.meet, registry.met = self._starts.meet, self._starts.is_met
        registry.pods = lambda: found.uids if (found := checkpoints.remembered(kubelet_dir())) else {}
        node = os.environ.get("NODE_NAME", "")
        self._complete, self._node = podresources.Complete(node), node or socket.gethostname()
        self._repeated: tuple[object, float] = None, 0.0  # for what kubelet was to write its checkpoint, and when
        self._named: object = None  # the book's file, and kubelet, when nothing was left to ask
        self._stands: object = None  # of what the last decision was made, if it stands
        self._found: tuple[object, object] = None, None  # the book; what claims have, and what kubelet has forgotten
        self._asked, self._pause = 0.0, 0.0  # time.monotonic() of the last question; seconds from that to the next
        self._wake: asyncio.Event | None = None  # in `keep`, for Python 3.9 ties it to the loop of that moment
        self._others: frozenset[Any] = frozenset()  # sockets of other plugins
        self._open = True  # the book has something that kubelet has not said yet
        self._asked_once = self._adopted = False  # kubelet; what its checkpoint has, by this process
        registry.news, registry.doubt = self.look, self._hurry

    async def keep(self) -> None:
        """Ask as long as the plugin runs.

        Sooner when a plugin's socket has come or gone: it may be a stranger with the same resource.
        """
        self._wake, self._others = asyncio.Event(), sockets.others(self.folder())
        while True:
            await until(self._wake, self._rest())
            self._wake.clear()
            await asyncio.sleep(TICK)
            found = sockets.others(self.folder())
            if found != self._others:  # inotify may not have told
                self._others = found
                self.doubt()
            if due := self._due() <= 0:
                self._asked, self._pause = time.monotonic(), min(2 * self._pause or TICK, self._longest())
                await reconcile.remind(self._registry, self._kubelet_dir())
                await reconcile.drop(self._registry, self._kubelet_dir(), QUIET)
            with contextlib.suppress(GpushimError):  # a book that cannot be written: `settled` tells of it
                await self._note(due)

    def look(self) -> None:
        """See soon whether there is something to ask."""
        if self._wake:
            self._wake.set()

    def doubt(self) -> None:
        """Take note that another plugin has come or gone."""
        self._hurry()
        for one in self._registry.served.values():
            one.endpoint.doubted = True

    def _hurry(self) -> None:
        self._pause = 0.0
        self.look()

    def _rest(self) -> float:
        """Return the seconds in which there is nothing to look at before somebody tells of it."""
        alone = self._registry.watched and not self._registry.instances.others()
        return max(0.0, self._due() - TICK) if alone and self._named is not None else 0.0

    def _due(self) -> float:
        """Return the seconds until the next question."""
        return self._asked + min(self._pause, self._longest()) - time.monotonic()

    def _longest(self) -> float:
        registry = self._registry
        waits = self._open or any(one.resource.gone for one in registry.served.values())
        alone = registry.watched and not (waits or self._others or registry.instances.others())
        return ALONE if alone else ASK

    async def settled(self, desired: Devices, snapshot: Snapshot) -> dict[str, list[Device]]:
        """List what kubelet is to be told, where somebody may have devices in another way: as `changes.settled`.

        Args:
            desired: what it would be told if nobody had anything.
            snapshot: of the host's inventory.

        Raises:
            GpushimError: the book cannot be written, or a newer version has written it.
        """
        shared, there = self._registry.book, resources.units(snapshot)
        shared.prepare()
        self._registry.instances.join(release.folder())
        await self._starts.met()
        page, folder = shared.now(shared.read()), self._kubelet_dir()
        former = claimed.instances(claimed.read()[1])
        claims = checkpoints.holding(folder, listed.known(page, there, former))
        doubtful = bool(claims) or listed.doubtful(page) or shared.stuck
        if self._stands == (_divisions(page), there, desired) and not doubtful:
            return {name: [*row] for name, row in desired.items()}
        matters = bool(claims) or self._matters(page, desired, listed.known(page, there))
        known = await self._evidence(snapshot, there, ask=matters)
        promised = None
        if matters or not self._adopted:
            promised = await asyncio.to_thread(checkpoints.remembered, folder)
        running = await self._running(page, known.pods, promised)
        with shared.locked() as before:
            page = shared.now(before)
            former = claimed.instances(claimed.read()[1])
            claims = checkpoints.holding(folder, listed.known(page, there, former))  # the lock is that file's, too
            known = evidence.with_claims(known, claims)
            if known.pods is not None:
                names = known.names if known.answered else None
                page = listed.listed(
                    page, known.pods, names, known.asked - QUIET, promised, known.whole, self._node, running=running
                )
            units = listed.known(page, there, former)
            alien = {uuid for uuid, owner in by_device.owners(page).items() if self._registry.instances.lives(owner)}
            settled, last = evidence.decided(page, desired, units, known, alien, listed.lost(page))
            new = by_device.noted(page, desired, last, settled, units, self._registry.instances.number)
            pods = {by_device.CLAIM: claims} if known.pods is None else known.pods
            new = listed.adopted(new, pods, units, promised.uids if promised else {})
            if known.answered:
                new = {**new, "unknown": ""}
            if new != before or shared.stuck:
                shared.write(new)
            self._adopted = self._adopted or promised is not None
        # If it does not matter who has what, it stands until host, settings or somebody's division change.
        self._stands = None if matters or settled.listed != desired else (_divisions(new), there, desired)
        return settled.listed

    def folders(self) -> tuple[str, ...]:
        """Return the directories in which files tell what to look at again."""
        return system.state_dir(), release.folder(), book.folder()

    def news(self, name: str) -> object:
        """Return what is another after a file of the state directory has changed, or by whom or how GPUs are had.

        That is what Allocate goes by, so that what it would refuse is told to kubelet before.
        """
        shared, damaged = self._registry.book, True
        with contextlib.suppress(GpushimError):
            page = shared.read()
            damaged = page is None
            if page is not None and page is not self._found[0]:
                self._found = page, (by_device.of_claims(page), listed.lost(page))
        return damaged, shared.stuck, shared.news, self._found[1], trust.identity(f"{system.state_dir()}/{name}")

    async def _running(self, page: Page, held: Held | None, promised: Remembered | None) -> frozenset[str]:
        """Return which pods have a process, of those that kubelet does not list."""
        return await cgroups.find_running(listed.unlisted_uids(page, held, promised) if held is not None else ())

    def _matters(self, page: Page, desired: Devices, units: Units) -> bool:
        """Say whether it has to be known who has what."""
        if page["unknown"] or listed.doubtful(page):
            return True
        return changing(by_device.devices(page, units), desired, units)

    async def _evidence(self, snapshot: Snapshot, units: Units, ask: bool) -> Evidence:
        """Gather what is known beside the book.

        Args:
            snapshot: of the host's inventory.
            units: what the host has.
            ask: ask kubelet, and read its checkpoints; else nothing depends on them.
        """
        folder, asked = self._kubelet_dir(), system.clock()
        answer = await podresources.listed(folder) if ask else None
        files = await asyncio.to_thread(checkpoints.read, folder, snapshot, units) if ask else checkpoints.Promised()
        pods = answer.held() if answer else None
        if answer and pods is not None:
            rows = answer.claims if self._heeds() else ()
            found = checkpoints.claimed(rows, snapshot, units, claimed.known())
            pods[by_device.CLAIM] = {uuid: who for who, uuid in found}
        if not self._heeds():
            files.held.pop(by_device.CLAIM, None)
        runs, names = self._starts.runs(), answer.pods if answer else ()
        young = self._starts.young(asked, QUIET)
        whole = answer is not None and self._complete.says(answer, asked, young)
        return Evidence(asked, pods, names, runs, young, files, whole)

    async def _note(self, due: bool = False) -> None:
        """Have the book name the pods of what was given out, and forget what was free before.

        At once, before a kubelet can forget it; what kubelet has forgotten, and claims, when their time has come.

        Args:
            due: ask of all, for the next kubelet is not to find what has ended.

        Raises:
            GpushimError: the book cannot be written.
        """
        shared, boot = self._registry.book, system.boot() or ""
        await self._starts.met()
        seen = trust.identity(shared.path), self._starts.kubelet()
        page = shared.read()
        if (seen == self._named and not due) or page is None or page["boot"] != boot:
            return
        sources = [(one["source"], one["time"]) for *_, one in by_device.entries(page)]
        self._open = any(one != by_device.LISTED for one, _ in sources)
        new = [since for source, since in sources if source == by_device.ALLOCATED]
        asked = system.clock()
        known = self._asked_once and all(one in by_device.SURE for one, _ in sources) and not (due and sources)
        if known and not any(since < asked - TICK for since in new):
            self._named = None if new else seen
            return
        answer = await podresources.listed(self._kubelet_dir())
        promised = await asyncio.to_thread(checkpoints.remembered, self._kubelet_dir())
        if answer is not None:
            young = self._starts.young(asked, QUIET)
            pods, whole = None if young else answer.pods, self._complete.says(answer, asked, young)
            held = answer.held()
            running = await self._running(page, held, promised)
            with shared.locked() as before:
                if before is not None and before["boot"] == boot and self._starts.kubelet() == seen[1]:
                    found = listed.listed(
                        before, held, pods, asked - QUIET, promised, whole, self._node, running=running
                    )
                    if found != before:
                        shared.write(found)
                        self._hurry()
                    if unlisted := listed.unlisted(found):
                        self._repeat((answer.pods, unlisted), asked)
            self._asked_once = True
        seen, page = (trust.identity(shared.path), self._starts.kubelet()), shared.read()
        entries = by_device.entries(page) if page else []
        new = [one["time"] for *_, one in entries if one["source"] == by_device.ALLOCATED]
        self._named = seen if all(since < asked - TICK for since in new) else None  # kubelet may not have it yet

    def _repeat(self, what: object, now: float) -> None:
        """Have kubelet write its checkpoint if anything is another, or after a while: it may have some MiB.

        Args:
            what: pods, and what they have.
            now: seconds since boot.
        """
        if (before := self._repeated)[0] != what or now - before[1] >= ALONE:
            self._repeated = what, now
            self._registry.repeat()

    def folder(self) -> str:
        """Return kubelet's directory of device plugins."""
        return plugins(self._kubelet_dir())


def _divisions(page: Page) -> object:
    """Return in which way all was given out last, and by which instance."""
    return {gpu: one["divisions"] for gpu, one in page["gpus"].items()}
