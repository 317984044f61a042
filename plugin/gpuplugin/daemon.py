"""From the snapshot to kubelet, and from kubelet's Allocate to its answer: the whole story, top to bottom.

Each resource of the snapshot has an endpoint at kubelet. Looked at again and again are the snapshot, which `gpushim
refresh --keep` renews; kubelet's directory; and what kubelet says that it has. An Allocate is answered from memory.
Out of scope: the wire (endpoint.py, service.py), asking for snapshots (node_requests.py), names and values (offer.py,
settings.py).
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation.allocators import SERVE, Allocators
from gpuplugin.allocation.kubelet_view import KubeletView
from gpuplugin.allocation.offer import absent, offered
from gpuplugin.allocation.registry import Registry
from gpuplugin.cluster.labels_file import LabelsFile
from gpuplugin.control.commands import Commands
from gpuplugin.control.control import Control
from gpuplugin.devices import preferred
from gpuplugin.health import reason
from gpuplugin.health.watch_children import Watchers
from gpuplugin.metrics.exporter import Exporter
from gpuplugin.mps.mps import Units
from gpuplugin.processes import moments, tasks
from gpuplugin.record.kubelet_watch import TICK
from gpuplugin.snapshot import release
from gpuplugin.snapshot.inotify import Watch
from gpuplugin.snapshot.node_requests import Renewal
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from gpuplugin.health.reason import Reason
    from gpuplugin.settings.settings import Settings
    from gpuplugin.settings.sources import Sources
    from gpushim.ground.model import Snapshot

WAIT = 2.0  # seconds between looks while there is no snapshot to go by
LONGEST = 4.0  # seconds between decisions while somebody has something in another way
CALM = 20.0  # a decision that is made again and again has at most one part in so many of the loop


class Plugin:
    """The daemon.

    Args:
        settings: in force.
        sources: what they are read from, whose changes are followed; None: they stay as they are.
    """

    def __init__(self, settings: Settings, sources: Sources | None = None) -> None:
        self._settings, self._sources = settings, sources
        self._tasks = tasks.Tasks(lambda: self._wake.set())
        self._registry = Registry(self._tasks.start)
        heeds = lambda: self._settings.values["other-givers"] != SERVE  # noqa: E731
        self._view = KubeletView(self._registry, lambda: str(self._settings.values["kubelet-dir"]), heeds)
        self._seen: object = None  # identity of the snapshot's file that kubelet was told of
        self._again = 0.0  # time.monotonic() at which that is looked at again, for something waits
        self._pause = TICK  # seconds until that, longer each time that nothing is new: a claim may stay for days
        self._started, self._ending, self._turns = False, False, 0  # of letting go and taking, that were seen
        self._noted: set[str] = set()
        self._snapshot: Snapshot | None = None  # the last one
        self._reasons: dict[str, list[Reason]] = {}  # of what is sick, by UUID
        self._commands = Commands(
            self._registry, self._tasks.start, self._close, lambda: self._wake.set(), self._about
        )
        self._control, self._units = Control(self._commands.by_word), Units(self._tasks.start)
        self._labels = LabelsFile(self._tasks.start)

    @property
    def _folder(self) -> str:
        return self._view.folder()

    @property
    def _usable(self) -> bool:
        return self._snapshot is not None and not self._renewal.problem

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            GpushimError: the host cannot serve GPUs, and the settings say not to wait.
        """
        loop, watch = asyncio.get_running_loop(), Watch()
        self._wake = asyncio.Event()  # not before: Python 3.9 ties it to the loop of that moment
        self._renewal = Renewal()
        path = f"{release.prepare()}/health.json"
        self._watchers = Watchers(path, self._tasks.start, self._judge, self._stale, self._settings.checks)
        self._allocators = Allocators(self._registry, lambda: self._settings, self._wake.set)
        about = lambda: (self._settings, self._snapshot, self._reasons, self._usable)  # noqa: E731
        self._exporter = Exporter(self._registry, self._watchers, self._tasks.start, self._commands.held, about)
        self._askers = (self._watchers, self._exporter)  # of the driver
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whose children are gone unasked if it came ignored
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tasks.start(self._read_again()))
        watch.begin(lambda: self._changed(watch))
        for one in (self._view, self._allocators):
            self._tasks.start(one.keep())
        try:
            await self._allocators.first()
            while not self._ending:
                self._watch(watch)
                pause = await self._look()
                await asyncio.gather(self._control.attend(system.state_dir()), self._exporter.attend())
                await tasks.until(self._wake, pause)
                self._wake.clear()
                if self._tasks.broken:
                    raise self._tasks.broken
        finally:
            watch.close()
            self._control.stop()
            await self._stop()

    def _end(self) -> None:
        self._ending = True
        self._wake.set()

    async def _stop(self) -> None:
        await self._tasks.stop()
        await asyncio.gather(*(one.stop() for one in self._askers), return_exceptions=True)
        await self._registry.stop()

    def _watch(self, watch: Watch) -> None:
        """Be told of changes, and read the settings again if one of their files has changed."""
        if watch.add(*self._allocators.folders(), self._folder, *self._view.folders()):
            self._changed(watch)  # nobody has told what came there meanwhile
        self._registry.watched = watch.tells(self._folder)
        if self._sources:
            watch.add(*self._sources.folders, written=True)
            if self._sources.changed():
                self._tasks.start(self._read_again(asked=False))

    def _changed(self, watch: Watch) -> None:
        """Have everything looked at again."""
        (self._view.doubt if self._allocators.doubt(watch.changed()) else self._view.look)()
        self._wake.set()
        self._registry.changed()

    async def _read_again(self, asked: bool = True) -> None:
        """Go by settings that have changed.

        Args:
            asked: by a signal, so that what is wrong is said even if it was said before, and all is registered again.
                Not without that: kubelet refuses the pod that it is admitting just then.
        """
        settings = await self._sources.renew(asked) if self._sources else self._settings
        if settings is None:
            return
        logger.info("the settings were read again")
        self._note(settings.notes)
        self._watchers.choose(settings.checks)
        before, self._settings, self._seen = self._folder, settings, None
        if asked and before == self._folder:
            self._registry.forgotten()
        self._wake.set()

    def _note(self, notes: list[str]) -> None:
        """Log what was not said already."""
        for note in sorted({*notes} - self._noted, key=notes.index):
            logger.warning("%s", note)

    async def _look(self) -> float:
        """Look at the snapshot, and go by one that kubelet was not told of.

        Returns:
            seconds after which to look again.

        Raises:
            GpushimError: from the start no GPU can be given out, and the settings say not to wait.
        """
        held = self._commands.held()
        self._started |= held
        if self._turns != self._commands.turns:
            self._turns, self._seen = self._commands.turns, None
            if not held:
                self._renewal.begin_anew()
        seen = (self._folder, self._view.news(ensure.SNAPSHOT))  # first: it may be replaced meanwhile
        if (found := self._read(held)) is None:
            return WAIT
        self._snapshot = found
        self._judge()
        self._labels.look(found, self._settings)
        if not held:
            self._watchers.hurry()
            if self._units.look(found, self._settings):
                self._seen = None
        if seen == self._seen and (left := self._again - time.monotonic()) > 0:  # or two that wait wake each other
            return min(left, moments.until())  # inotify may not tell of a change
        if not held:
            await self._watchers.catch_up(found)
        if not self._commands.held():  # nor meanwhile
            self._watchers.watch(found)
        return await self._go_by(found, seen)

    def _read(self, held: bool) -> Snapshot | None:
        """Read the snapshot; have one that is out of date renewed, unless the GPUs are let go.

        Raises:
            GpushimError: as for `_fail`, or this process cannot go on.
        """
        if held:
            return self._renewal.last()  # of which nothing is given out
        found = self._renewal.read()
        if found is None and self._renewal.problem:
            self._fail(self._renewal.problem)
        return found

    async def _go_by(self, found: Snapshot, seen: object) -> float:
        """Tell kubelet what a snapshot has; returns seconds after which to look again.

        Raises:
            GpushimError: as for `_fail`.
        """
        notes: list[str] = []
        settings, waits, begun = self._settings, False, time.thread_time()
        try:
            waits = await self._offer(found, notes)
        except GpushimError as error:
            self._fail(error)
            notes.append(f"no device is given out: {error}")
        else:
            self._started = True
            self._pause = min(2 * self._pause, LONGEST) if seen == self._seen else TICK
            self._seen = None if settings is not self._settings else seen
            self._again = time.monotonic() + (self._pause if waits else float("inf"))
        self._note(notes)
        self._noted = {*notes}
        return max(self._pause if waits else moments.until(), CALM * (time.thread_time() - begun))

    def _judge(self) -> None:
        """Tell kubelet at once what is wrong with GPUs; all their replicas and MIG instances are sick with them."""
        if self._snapshot is not None:
            self._reasons = self._allocators.added(self._watchers.problems(self._snapshot), self._snapshot)
            self._registry.mark_unhealthy(reason.texts(self._reasons, self._snapshot))

    def _stale(self) -> None:
        """Have the snapshot renewed, though nothing but NVML tells that it is not true."""
        if not self._commands.held():
            self._renewal.hurry()

    async def _close(self) -> None:
        """End what asks the driver, and wait for a refresh, which does."""
        await asyncio.gather(*(one.stop(patient=True) for one in self._askers), self._renewal.over())

    def _about(self) -> tuple[str, dict[str, list[Reason]], dict[str, Any]]:
        """Say what the state of the plugin is made of beside its resources."""
        problems = [self._sources.problem if self._sources else "", self._exporter.problem, self._labels.problem]
        everything = [
            *problems,
            *self._settings.notes,
            *sorted(self._noted),
            *self._allocators.notes,
        ]
        notes = [*filter(None, dict.fromkeys(everything))]
        more: dict[str, Any] = {"watched": self._watchers.watched, "notes": notes}
        more.update(
            self._allocators.state, profile=self._settings.profile or None, problem=str(self._renewal.problem or "")
        )
        return str(self._settings.values["kubelet-dir"]), self._reasons, more

    def _fail(self, error: GpushimError) -> None:
        """Give nothing out until there is a snapshot to go by.

        Raises:
            GpushimError: it is so from the start, and the settings say not to wait.
        """
        if self._settings.values["fail-on-init-error"] and not self._started:
            raise error
        self._seen = None
        self._registry.fail(reason.brief(str(error)))

    async def _offer(self, snapshot: Snapshot, notes: list[str]) -> bool:
        """Tell kubelet what a snapshot has.

        Returns:
            whether something is kept as it was, since a pod has it.

        Raises:
            GpushimError: its devices cannot be given out.
        """
        settings = self._settings
        found, ways = offered(snapshot, settings, notes)
        notes += absent(settings)
        notes += ["no device is given out: this host has no GPU, or exclude leaves all of them out"] * (not found)
        weights = preferred.nearness({gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]})
        now = await self._view.decide(found, snapshot)
        if settings is self._settings:  # else they were read again meanwhile
            self._registry.offer(now, ways, settings, weights, self._folder)
        return now != found
