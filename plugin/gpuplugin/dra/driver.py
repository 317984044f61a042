"""The outline of the DRA driver's half on the node: from the snapshot to slices, and from a claim to its answer.

It is root and has no token. The snapshot, with what is unhealthy and what the device plugin gave, becomes slices,
which the other half publishes as long as kubelet has this driver; kubelet's calls are answered by prepare.py.
Out of scope: the API server (gpuplugin.cluster), the wire (gpuplugin.kubelet.dra), the device plugin (daemon.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.control.control import Control
from gpuplugin.control.letting_go import LettingGo
from gpuplugin.dra import offered, spec, taints
from gpuplugin.dra.link import Link
from gpuplugin.dra.newest import Newest
from gpuplugin.dra.prepare import Claims, Offer
from gpuplugin.dra.shared import Sharing
from gpuplugin.dra.status import Now, Status
from gpuplugin.health import reason
from gpuplugin.health.watch_children import Watchers
from gpuplugin.kubelet import dra, plugins
from gpuplugin.metrics.exporter import Exporter
from gpuplugin.processes import moments, tasks
from gpuplugin.record import allocations_file, transitions
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.snapshot import release
from gpuplugin.snapshot.inotify import Watch
from gpuplugin.snapshot.node_requests import Renewal
from gpuplugin.snapshot.node_snapshot import OutdatedError
from gpushim.config.kubeconfig import Kubeconfig
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.dra.link import Place
    from gpuplugin.dra.offered import Offered
    from gpuplugin.health.reason import Reason
    from gpuplugin.record.record_form import Record
    from gpuplugin.settings.settings import Settings
    from gpuplugin.settings.sources import Sources
    from gpushim.ground.model import Snapshot

OTHERS = 10.0  # seconds between looks for other drivers of this name


class NodeHalf:
    """The driver's half on the node.

    Args:
        settings: in force, those of the device plugin.
        sources: what they are read from, whose changes are followed.
        node: this node's name.
        place: where it meets the other half.
    """

    def __init__(self, settings: Settings, sources: Sources, node: str, place: Place) -> None:
        self._settings, self._sources, self._node, self._place = settings, sources, node, place
        self._tasks = tasks.Tasks(lambda: self._wake.set())
        self._file, self._newest, self._kubeconfig = AllocationsFile(), Newest(), Kubeconfig()
        self._snapshot: Snapshot | None = None
        self._anew = False  # the settings have changed since it was taken
        self._offered: list[Offered] = []
        self._offer = Offer({}, "", "the driver has only just started")
        self._watch = KubeletWatch(
            self._file, lambda: str(self._settings.values["kubelet-dir"]), lambda: self._snapshot, self._wake_up
        )
        self._sharing = Sharing(self._file, self._tasks.start, lambda: self._offer.usable)
        self._why: dict[str, str] = {}  # sentences by UUID
        self._unwell: dict[str, str] = {}  # of what is offered, as the log has it
        self._reasons: Mapping[str, list[Reason]] = {}
        self._desired: list[list[dict[str, Any]]] | None = None  # slices, while this instance publishes
        self._rival, self._asked = "", -OTHERS
        self._logged: dict[str, str] = {}
        self._lacks = ""  # what the CDI spec does not have, a sentence
        self._turns = 0
        self._ending = False

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            GpushimError: this process cannot go on.
        """
        loop, watch = asyncio.get_running_loop(), Watch()
        self._wake, self._renewal, self._plugins = asyncio.Event(), Renewal(), plugins.Plugins()
        kubelet_dir = str(self._settings.values["kubelet-dir"])
        folder = release.prepare()
        self._newest.join(folder)
        self._watchers = Watchers(
            f"{folder}/health.json", self._tasks.start, self._wake.set, self._renewal.hurry, self._settings.checks
        )
        self._link = Link(self._place, self._tasks.start, self._wake.set)
        claims = Claims(self._file, self._watch, self._link, self._node, lambda: self._offer, self._sharing)
        self._letting = LettingGo(self._tasks.start, self._close, self._wake.set, lambda _: None, "the DRA driver")
        status = Status(self._now, claims, self._file, self._link, self._newest, self._letting, kubelet_dir)
        status.driver = self._driver = dra.Driver(
            OWN_DRIVER, kubelet_dir, status.prepare, status.unprepare, self._health, self._registered
        )
        about = lambda: (self._settings, self._offer.snapshot, {**self._reasons}, not self._offer.problem)  # noqa: E731
        self._exporter = Exporter(status, self._watchers, self._tasks.start, self._letting.held, about)
        self._control = Control(status.by_word, plugin_socket.DRIVERS, "the DRA driver")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tasks.start(self._read_again(asked=True)))
        watch.begin(lambda: self._changed(watch))
        self._tasks.start(claims.keep())
        try:
            while not self._ending:
                watch.add(
                    system.state_dir(), folder, allocations_file.folder(), self._driver.folder, self._driver.registry
                )
                watch.add(*self._sources.folders, written=True)
                if self._sources.changed():
                    self._tasks.start(self._read_again())
                await self._look(kubelet_dir)
                await tasks.until(self._wake, moments.until())  # inotify may not tell of a change
                self._wake.clear()
                if self._tasks.broken:
                    raise self._tasks.broken
        finally:
            watch.close()
            await self._stop()

    def _changed(self, watch: Watch) -> None:
        watch.changed()
        self._wake.set()

    async def _read_again(self, asked: bool = False) -> None:
        """Go by settings that have changed; what is wrong with them is logged."""
        settings = await self._sources.renew(asked)
        if settings is None:
            return
        logger.info("the settings were read again")
        for note in settings.notes:
            if asked or note not in self._settings.notes:
                logger.warning("%s", note)
        before, self._settings, self._anew = self._settings, settings, True
        self._watchers.choose(settings.checks)
        if settings.values["kubelet-dir"] != before.values["kubelet-dir"]:
            self._end()  # whoever starts it starts it again
        self._wake.set()

    def _end(self) -> None:
        self._ending = True
        self._wake.set()

    async def _close(self) -> None:
        """End what asks the driver, and wait for a refresh, which does."""
        askers = self._watchers, self._exporter
        await asyncio.gather(*(one.stop(patient=True) for one in askers), self._renewal.over())

    async def _stop(self) -> None:
        """Leave the slices as they are: another instance goes on with them, or kubelet takes them away."""
        self._control.stop()
        await self._tasks.stop()
        self._link.stop()
        await self._driver.stop()
        await asyncio.gather(self._watchers.stop(), self._exporter.stop())

    async def _look(self, kubelet_dir: str) -> None:
        """Look at all that slices are made of, and have them published."""
        await self._find_rival(kubelet_dir)
        with self._once("snapshot"):
            await self._read()
        with self._once("kubeconfig"):
            self._link.lend(self._kubeconfig.look(str(self._settings.values["kubeconfig"])))
        with self._once("link"):
            await self._link.attend()
        if not self._rival:
            with self._once("kubelet"):
                await self._driver.attend()
        publishes = self._driver.registered and not self._rival and self._newest.is_it()
        self._desired = self._slices() if publishes else None
        self._link.tell(self._desired)
        await self._control.attend(system.state_dir())
        await self._exporter.attend()

    def _registered(self) -> None:
        if self._driver.registered:
            self._newest.become()
        self._wake.set()

    async def _find_rival(self, kubelet_dir: str) -> None:
        """See whether another giver's driver of this name listens, beside which this one gives out nothing."""
        if time.monotonic() - self._asked < OTHERS:
            return
        self._asked = time.monotonic()
        found = await plugins.find_rival(self._plugins, kubelet_dir, OWN_DRIVER)
        if found and found != self._rival:
            logger.error("%s", spec.RIVAL.format(found))
            await self._driver.stop()
        self._rival = found

    async def _read(self) -> None:
        """Go by the snapshot that counts now.

        Raises:
            GpushimError: there is none, or this host cannot serve GPUs.
        """
        if self._letting.held():
            self._offer = self._offer._replace(problem=release.PROBLEM)
            return
        if self._turns != self._letting.turns:
            self._turns = self._letting.turns
            self._renewal.begin_anew()
        found = self._renewal.read()
        if found is None:
            if self._renewal.problem:
                self._offer = self._offer._replace(problem=str(self._renewal.problem))
            return
        self._watchers.hurry()
        if found["error"]:
            self._offer = self._offer._replace(problem=found["error"]["sentence"])
            return
        if found != self._snapshot or self._offer.problem or self._lacks or self._anew:
            await self._watchers.catch_up(found)
            if not self._letting.held():  # nor meanwhile
                self._watchers.watch(found)
            await self._take(found)
        self._judge(found)

    async def _take(self, found: Snapshot) -> None:
        devices, lacks, why = spec.devices(found, self._settings.values)
        self._offered, self._anew = [one for one in devices if one.uuid not in lacks], False
        if why and why == self._lacks:  # a refresh writes the snapshot, and a moment later the spec
            self._warn("spec", why)
        self._lacks = why
        self._snapshot = found
        if self._watch.state.snapshot is None:  # before anything is offered
            self._file.prepare()
            await self._watch.reconcile()
        names = {one.name: one for one in self._offered}
        self._offer = Offer(names, found["policy"]["cdi"]["kind"], snapshot=found)

    def _judge(self, found: Snapshot) -> None:
        """Have kubelet told what is unhealthy."""
        self._reasons = self._watchers.problems(found)
        sick = taints.of_health(self._reasons, str(self._settings.values["taint-effect"]))
        self._offer = self._offer._replace(sick=sick, sentences=reason.texts(self._reasons, found))
        why = {
            **self._lost,
            **self._sharing.problems,
            **taints.problems(found),
            **reason.texts(self._reasons, found),
        }
        if why != self._why:
            self._why = why
            self._driver.tell()
        self._unwell = taints.log(self._unwell, self._offered, why)

    def _record(self) -> Record | None:
        with contextlib.suppress(GpushimError):
            return self._file.current(self._file.read())
        return None

    @property
    def _lost(self) -> dict[str, str]:
        record = self._record()
        return transitions.find_lost_claims(record) if record else {}

    def _wake_up(self) -> None:
        self._wake.set()

    def _slices(self) -> list[list[dict[str, Any]]]:
        if (found := self._taints()) is None:
            return [[]]
        return offered.slices(
            self._offered, {one.name: found[one.uuid] for one in self._offered if one.uuid in found}
        )

    def _taints(self) -> dict[str, list[dict[str, str]]] | None:
        """Return taints by UUID; None while nothing can be given out."""
        if self._offer.problem or self._snapshot is None:
            return None
        effect, record = str(self._settings.values["taint-effect"]), self._record()
        owed = {**self._lost, **self._sharing.owed}
        return taints.taints(self._reasons, self._snapshot, record, effect, owed)

    def _now(self) -> Now:
        state = self._offered, self._why, self._reasons, self._offer.problem, self._lacks, self._desired
        return Now(self._node, self._rival, *state, lambda: self._taints() or {})

    def _health(self) -> list[dict[str, Any]]:
        problem = self._offer.problem
        why = dict.fromkeys((one.uuid for one in self._offered), problem) if problem else self._why
        return taints.health(self._offered, self._node, why)

    def _warn(self, part: str, sentence: str) -> None:
        if self._logged.get(part) != sentence:
            logger.error("%s", sentence)
        self._logged[part] = sentence

    @contextlib.contextmanager
    def _once(self, part: str) -> Any:
        """Log what goes wrong with a part, once until it goes well; of an OutdatedError the process is to end."""
        try:
            yield
        except OutdatedError:
            raise
        except GpushimError as error:
            self._warn(part, str(error))
            if part == "snapshot":
                self._offer = self._offer._replace(problem=str(error))
        else:
            self._logged.pop(part, None)
