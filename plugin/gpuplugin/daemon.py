"""The agent on the node: one loop for all fronts, by which Kubernetes gets this node's GPUs.

What they share is here: settings, the snapshot, which `gpushim refresh --keep` renews, the record with what kubelet
has, the children that ask NVML, metrics, root's socket, and the release of the GPUs. A front tells kubelet what there
is, and answers its calls.
Out of scope: the fronts (allocation/plugin_front.py, dra/claims_front.py), asking for snapshots (node_requests.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation.allocators import SERVE
from gpuplugin.control.commands import Commands
from gpuplugin.control.control import Control
from gpuplugin.control.letting_go import LettingGo
from gpuplugin.health.mig_layout import MigLayout
from gpuplugin.health.watch_children import Watchers
from gpuplugin.metrics import exporter
from gpuplugin.metrics.exporter import Exporter
from gpuplugin.processes import tasks
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.snapshot import release
from gpuplugin.snapshot.inotify import Watch
from gpuplugin.snapshot.node_requests import Renewal
from gpushim import __version__
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Protocol

    from gpuplugin.health.reason import Reason
    from gpuplugin.settings.settings import Settings
    from gpuplugin.settings.sources import Sources
    from gpushim.ground.model import Snapshot

    class Front(exporter.Front, Protocol):
        """A way by which Kubernetes gets GPUs here.

        Attributes:
            name: as the setting fronts has it.
            program: its name in sentences.
        """

        name: str
        program: str

        async def begin(self) -> None:
            """Begin what goes on beside the loop; return when kubelet may be told of devices."""

        def watch(self, watch: Watch) -> bool:
            """Have directories watched; return whether nothing told what came to one until now."""

        def changed(self, paths: Collection[str]) -> None:
            """Have looked at again what may be another, as these paths came or went."""

        def obey(self, before: Settings, asked: bool) -> bool:
            """Go by other settings, for which a signal may have asked; return whether this process can."""

        def hold(self, problem: str) -> None:
            """Give nothing out, until it is called with "" and a snapshot has come."""

        def fail(self, error: GpushimError) -> None:
            """Give nothing out until there is a snapshot to go by."""

        def judge(self, reasons: Mapping[str, list[Reason]], snapshot: Snapshot) -> None:
            """Have kubelet told at once what is unhealthy, of which these are the reasons by UUID."""

        async def look(self, snapshot: Snapshot | None) -> float:
            """Go by a snapshot, or the lack of one; return seconds after which to look again."""

        async def status(self) -> dict[str, Any]:
            """Return members of what root is told who asks."""

        async def stop(self) -> None:
            """Serve no more."""

    MakeFront = Callable[
        [Callable[[], Settings], KubeletWatch, Callable[[Any], asyncio.Task[Any]], Callable[[], None]], Front
    ]


class Agent:
    """The process on the node.

    Args:
        settings: in force.
        sources: what they are read from, whose changes are followed; None: they stay as they are.
        fronts: make each front, of what returns the settings, the watch of kubelet, what starts a task, and what has
            all looked at again.
    """

    def __init__(self, settings: Settings, sources: Sources | None, fronts: Sequence[MakeFront]) -> None:
        self._settings, self._sources = settings, sources
        self._tasks = tasks.Tasks(lambda: self._wake.set())
        wake, heeds = lambda: self._wake.set(), lambda: self._settings.values["other-givers"] != SERVE
        self._kubelet = watch = KubeletWatch(self._kubelet_dir, wake, heeds)
        self._fronts = [make(lambda: self._settings, watch, self._tasks.start, wake) for make in fronts]
        self._layout = MigLayout()
        self._snapshot: Snapshot | None = None  # the last one
        self._reasons: dict[str, list[Reason]] = {}  # of what is sick, by UUID
        self._ending, self._turns = False, 0  # of letting go and taking, that were seen
        program = self._fronts[0].program
        self._letting = LettingGo(self._tasks.start, self._close, lambda: self._wake.set(), self._hold, program)
        self._control = Control(Commands(self._letting, self._kubelet_dir, self._status).by_word, program)

    def _kubelet_dir(self) -> str:
        return str(self._settings.values["kubelet-dir"])

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            GpushimError: the host cannot serve GPUs, and the settings say not to wait; or this process cannot go on.
        """
        loop, watch = asyncio.get_running_loop(), Watch()
        self._wake = asyncio.Event()  # not before: Python 3.9 ties it to the loop of that moment
        self._renewal = Renewal()
        path = f"{release.prepare()}/health.json"
        self._watchers = Watchers(path, self._tasks.start, self._judge, self._stale, self._settings.checks)
        about = lambda: (self._settings, self._snapshot, self._reasons, self._is_usable())  # noqa: E731
        self._exporter = Exporter(self._fronts, self._watchers, self._tasks.start, self._letting.held, about)
        self._askers = (self._watchers, self._exporter)  # of the driver
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whose children are gone unasked if it came ignored
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tasks.start(self._read_again()))
        watch.begin(lambda: self._changed(watch))
        try:
            for front in self._fronts:
                await front.begin()
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

    def _is_usable(self) -> bool:
        return self._snapshot is not None and not self._renewal.problem

    def _end(self) -> None:
        self._ending = True
        self._wake.set()

    async def _stop(self) -> None:
        await self._tasks.stop()
        await asyncio.gather(*(asker.stop() for asker in self._askers), return_exceptions=True)
        await asyncio.gather(*(front.stop() for front in self._fronts))

    def _watch(self, watch: Watch) -> None:
        """Be told of changes, and read the settings again if one of their files has changed."""
        new = [front.watch(watch) for front in self._fronts]
        if any(new):
            self._changed(watch)  # nobody has told what came there meanwhile
        if self._sources:
            watch.add(*self._sources.folders, written=True)
            if self._sources.changed():
                self._tasks.start(self._read_again(asked=False))

    def _changed(self, watch: Watch) -> None:
        """Have everything looked at again."""
        paths = watch.changed()
        for front in self._fronts:
            front.changed(paths)
        self._wake.set()

    async def _read_again(self, asked: bool = True) -> None:
        """Go by settings that have changed.

        Args:
            asked: by a signal, so that what is wrong is said even if it was said before.
        """
        settings = await self._sources.renew(asked) if self._sources else self._settings
        if settings is None:
            return
        logger.info("the settings were read again")
        before, self._settings = self._settings, settings
        for note in settings.notes:
            if asked or note not in before.notes:
                logger.warning("%s", note)
        self._watchers.choose(settings.checks)
        able = [front.obey(before, asked) for front in self._fronts]
        if not all(able) or settings.values["fronts"] != before.values["fronts"]:
            self._end()  # whoever starts it starts it again
        self._wake.set()

    async def _look(self) -> float:
        """Have the fronts go by the snapshot that counts now.

        Returns:
            seconds after which to look again.

        Raises:
            GpushimError: from the start no GPU can be given out, and the settings say not to wait.
        """
        is_held = self._letting.held()
        is_anew = self._turns != self._letting.turns
        self._turns = self._letting.turns
        if is_anew and not is_held:
            self._renewal.begin_anew()
        snapshot = self._read(is_held)
        if snapshot is not None:
            await self._go_by(snapshot, is_held, is_anew)
        return min([await front.look(snapshot) for front in self._fronts])

    def _read(self, is_held: bool) -> Snapshot | None:
        """Read the snapshot; have one that is out of date renewed, unless the GPUs are let go.

        Raises:
            GpushimError: as for `_look`, or this process cannot go on.
        """
        if is_held:
            return self._renewal.last()  # of which nothing is given out
        snapshot = self._renewal.read()
        if snapshot is None and self._renewal.problem:
            for front in self._fronts:
                front.fail(self._renewal.problem)
        return snapshot

    async def _go_by(self, snapshot: Snapshot, is_held: bool, is_anew: bool) -> None:
        """Have the GPUs of a snapshot watched, and tell the fronts what is wrong with them."""
        is_new, self._snapshot = snapshot is not self._snapshot or is_anew, snapshot
        waits = not is_held and self._layout.look(self._settings.values, snapshot)
        self._judge()
        if is_held:
            return
        if waits and self._kubelet.snapshot is not None:
            with contextlib.suppress(GpushimError):  # a record that cannot be written: the fronts tell of it
                await self._kubelet.reconcile()
                self._layout.free(self._settings.values, snapshot, self._kubelet.file.read_known())
        self._watchers.hurry()
        if is_new:
            await self._watchers.catch_up(snapshot)
            if not self._letting.held():  # nor meanwhile
                self._watchers.watch(snapshot)

    def _judge(self) -> None:
        """Have each front judge at once what is wrong with GPUs."""
        if self._snapshot is not None:
            self._reasons = self._watchers.problems(self._snapshot)
            for uuid, reasons in self._layout.reasons.items():
                self._reasons[uuid] = [*self._reasons.get(uuid, ()), *reasons]
            for front in self._fronts:
                front.judge(self._reasons, self._snapshot)

    def _stale(self) -> None:
        """Have the snapshot renewed, though nothing but NVML tells that it is not true."""
        if not self._letting.held():
            self._renewal.hurry()

    def _hold(self, problem: str) -> None:
        for front in self._fronts:
            front.hold(problem)

    async def _close(self) -> None:
        """End what asks the driver, and wait for a refresh, which does."""
        await asyncio.gather(*(asker.stop(patient=True) for asker in self._askers), self._renewal.over())

    async def _status(self) -> dict[str, Any]:
        """Return what root is told who asks."""
        answer: dict[str, Any] = {"resources": [], "pods": [], "notes": []}
        for front in self._fronts:
            answer.update(await front.status())
        problems = [self._sources.problem if self._sources else "", self._exporter.problem, self._layout.problem]
        notes = [*problems, *self._settings.notes, *answer["notes"]]
        return {
            **answer,
            "fronts": [front.name for front in self._fronts],
            "version": __version__,
            "kubelet_dir": self._kubelet_dir(),
            "watched": self._watchers.watched,
            "notes": [*filter(None, dict.fromkeys(notes))],
            "profile": self._settings.profile or None,
            "problem": str(self._renewal.problem or ""),
        }
