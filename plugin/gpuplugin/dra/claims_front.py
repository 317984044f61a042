"""The DRA driver's half on the node: from the snapshot to slices, and from a claim to its answer.

It is root and has no token. The snapshot, with what is unhealthy and what the device plugin gave, becomes slices,
which the other half publishes as long as kubelet has this driver; kubelet's calls are answered by prepare.py.
Out of scope: the loop, the snapshot and health (daemon.py), the API server (gpuplugin.cluster), the wire
(gpuplugin.kubelet.dra).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gpuplugin.devices import division
from gpuplugin.dra import partitions, spec, taints
from gpuplugin.dra.claim_offer import Offer
from gpuplugin.dra.cutting import OnDemand
from gpuplugin.dra.link import Link
from gpuplugin.dra.newest import Newest
from gpuplugin.dra.partitions import is_unmade
from gpuplugin.dra.prepare import Claims
from gpuplugin.dra.shared import Sharing
from gpuplugin.dra.status import Now, Status
from gpuplugin.health import reason
from gpuplugin.kubelet import dra, plugins
from gpuplugin.processes import moments
from gpuplugin.record import allocations_file, transitions
from gpuplugin.snapshot import release
from gpushim.config.kubeconfig import Kubeconfig
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterator, Mapping

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.link import LinkSocket
    from gpuplugin.dra.offered import Offered
    from gpuplugin.health.reason import Reason
    from gpuplugin.record.kubelet_watch import KubeletWatch
    from gpuplugin.settings.settings import Settings
    from gpuplugin.snapshot.inotify import Watch
    from gpushim.ground.model import Snapshot


class ClaimsFront:
    """The driver's half on the node (gpuplugin.daemon.Front).

    Args:
        node: this node's name.
        socket: where it meets the other half.
        settings: returns those in force.
        watch: what kubelet has, with the record.
        start: starts a task, and sees to what it ends with.
        wake: has all looked at again.
    """

    name, program = "dra", "the DRA driver"

    def __init__(
        self,
        node: str,
        socket: LinkSocket,
        settings: Callable[[], Settings],
        watch: KubeletWatch,
        start: Callable[[Any], asyncio.Task[Any]],
        wake: Callable[[], None],
    ) -> None:
        self._node, self._settings, self._start, self._wake = node, settings, start, wake
        self._kubelet, self._file, self._newest = watch, watch.file, Newest()
        self._kubeconfig, self._link = Kubeconfig(), Link(socket, start, wake)
        self._snapshot: Snapshot | None = None  # of which all that is offered is
        self._anew = False  # the settings have changed since it was taken
        self._offered: list[Offered] = []
        self._offer = Offer({}, "", "the driver has only just started")
        self._sharing = Sharing(self._file, start, lambda: self._offer.usable, self._find_daemons)
        self._why: dict[str, str] = {}  # sentences by UUID
        self._unwell: dict[str, str] = {}  # of what is offered, as the log has it
        self._reasons: Mapping[str, list[Reason]] = {}
        self._desired: list[list[dict[str, Any]]] | None = None  # slices, while this instance publishes
        self._logged: dict[str, str] = {}
        self._rival = self._held = ""  # why nothing is given out, whatever the snapshot has
        self._lacks = ""  # what the CDI spec does not have, a sentence
        kubelet_dir = watch.kubelet_dir()  # for good: see `obey`
        self._counters: list[dict[str, Any]] = []  # of GPUs that are cut on demand
        self._on_demand = OnDemand(lambda: None if self._held else self._snapshot, lambda: self._offer.devices)
        self._claims = Claims(watch, self._link, node, lambda: self._offer, self._sharing, self._on_demand)
        self._status = Status(self._now, self._claims, self._file, self._link, self._newest)
        self._status.driver = self._driver = dra.Driver(
            OWN_DRIVER, kubelet_dir, self._status.prepare, self._status.unprepare, self._health, self._registered
        )
        self.state, self.unready, self.gpus = self._status.state, self._status.unready, self._status.gpus

    async def begin(self) -> None:
        """Become one of the instances here, and begin to take back what claims have no more."""
        self._newest.join(release.folder())
        self._start(self._claims.keep())

    async def stop(self) -> None:
        """Leave the slices as they are: another instance goes on with them, or kubelet takes them away."""
        self._link.stop()
        await self._driver.stop()

    def watch(self, watch: Watch) -> bool:
        """Have directories watched; all of it is looked at each time."""
        watch.add(
            system.state_dir(),
            release.folder(),
            allocations_file.folder(),
            self._driver.folder,
            self._driver.registry,
        )
        return False

    def changed(self, paths: Collection[str]) -> None:
        """Do nothing: all of it is looked at each time."""

    def serves(self, metrics: bool) -> None:
        """Take no note: nobody asks."""

    def obey(self, before: Settings, asked: bool) -> bool:
        """Go by other settings; in another directory of kubelet's another process does."""
        self._anew = True
        return bool(before.values["kubelet-dir"] == self._settings().values["kubelet-dir"])

    def hold(self, problem: str) -> None:
        """Give nothing out, until it is called with "" and a snapshot has come."""
        self._held = problem
        self._offer = self._offer._replace(problem=problem or self._offer.problem)

    def fail(self, error: GpushimError) -> None:
        """Give nothing out until there is a snapshot to go by."""
        self._offer = self._offer._replace(problem=str(error))

    async def status(self) -> dict[str, Any]:
        """Return members of what root is told who asks."""
        return {"dra": self._status.asked()}

    async def look(self, snapshot: Snapshot | None) -> float:
        """Look at all that slices are made of, and have them published; return seconds after which to look again."""
        await self._find_rival()
        with self._once("snapshot"):
            if snapshot is not None and not self._held:
                await self._go_by(snapshot)
        with self._once("kubeconfig"):
            self._link.lend(self._kubeconfig.look(str(self._settings().values["kubeconfig"])))
        with self._once("link"):
            await self._link.attend()
        if not self._rival:
            with self._once("kubelet"):
                await self._driver.attend()
        publishes = self._driver.registered and not self._rival and self._newest.is_it()
        self._desired = self._slices() if publishes else None
        self._link.tell(self._desired)
        return moments.until()  # inotify may not tell of a change

    def _registered(self) -> None:
        if self._driver.registered:
            self._newest.become()
        self._wake()

    async def _find_rival(self) -> None:
        """See whether another giver's driver of this name listens, beside which this one gives out nothing."""
        path = await plugins.find_rival(self._kubelet.plugins, self._kubelet.kubelet_dir(), OWN_DRIVER)
        if path and path != self._rival:
            logger.error("%s", spec.RIVAL.format(path))
            await self._driver.stop()
        self._rival = path

    async def _go_by(self, snapshot: Snapshot) -> None:
        """Offer what a snapshot has.

        Raises:
            GpushimError: this host cannot serve GPUs, or the record cannot be written.
        """
        if snapshot["error"]:
            self._offer = self._offer._replace(problem=snapshot["error"]["sentence"])
        elif snapshot is not self._snapshot or self._offer.problem or self._lacks or self._anew:
            await self._take(snapshot)
            self.judge(self._reasons, snapshot)

    async def _take(self, snapshot: Snapshot) -> None:
        self._snapshot = self._kubelet.snapshot = snapshot
        self._anew = True  # until all of it is known
        if self._kubelet.state.snapshot is None:  # before anything is offered
            self._file.prepare()
            await self._kubelet.reconcile()
        is_known = False
        with self._once("on-demand"):
            await self._on_demand.learn(snapshot, self._settings().values)
            is_known = True
        devices, self._counters, lacks, sentence = self._on_demand.publish(
            snapshot, self._settings(), transitions.list_made_names(self._file.read_known())
        )
        self._offered, self._anew = [device for device in devices if device.uuid not in lacks], not is_known
        if sentence and sentence == self._lacks:  # a refresh writes the snapshot, and a moment later the spec
            self._warn("spec", sentence)
        self._lacks = sentence
        names = {device.name: device for device in self._offered}
        self._offer = Offer(names, snapshot["policy"]["cdi"]["kind"], snapshot=snapshot)

    def judge(self, reasons: Mapping[str, list[Reason]], snapshot: Snapshot) -> None:
        """Have kubelet told what is unhealthy, and slices looked at again."""
        self._reasons = reasons
        sick = taints.of_health(self._reasons, str(self._settings().values["taint-effect"]))
        self._offer = self._offer._replace(sick=sick, sentences=reason.texts(self._reasons, snapshot))
        sentences = {
            **self._find_lost(),
            **self._sharing.problems,
            **taints.problems(snapshot),
            **reason.texts(self._reasons, snapshot),
        }
        if sentences != self._why:
            self._why = sentences
            self._driver.tell()
            self._wake()
        self._unwell = taints.log(self._unwell, self._present(), sentences)

    def _present(self) -> list[Offered]:
        """Return the devices that are there, or were when they were last seen."""
        return [device for device in self._offered if not is_unmade(device)]

    def _find_daemons(self) -> list[MpsGroup]:
        return division.mps_groups(self._snapshot, self._settings()) if self._snapshot else []

    def _find_lost(self) -> dict[str, str]:
        record = self._file.read_known()
        return transitions.find_lost_claims(record, self._claims.warned) if record else {}

    def _slices(self) -> list[list[dict[str, Any]]]:
        if (taints_by_uuid := self._taints()) is None:
            return [[]]
        return partitions.slices(self._offered, self._counters, taints_by_uuid)

    def _taints(self) -> dict[str, list[dict[str, str]]] | None:
        """Return taints by UUID; None while nothing can be given out."""
        if self._offer.problem or self._snapshot is None:
            return None
        effect, record = str(self._settings().values["taint-effect"]), self._file.read_known()
        unfinished = {**self._find_lost(), **self._sharing.unrestored}
        return taints.taints(self._reasons, self._snapshot, record, effect, unfinished)

    def _now(self) -> Now:
        state = self._present(), self._why, self._reasons, self._offer.problem, self._lacks, self._desired
        return Now(self._node, self._rival, *state, lambda: self._taints() or {})

    def _health(self) -> list[dict[str, Any]]:
        problem = self._offer.problem
        devices = self._present()
        sentences = dict.fromkeys((device.uuid for device in devices), problem) if problem else self._why
        return taints.health(devices, self._node, sentences)

    def _warn(self, part: str, sentence: str) -> None:
        if self._logged.get(part) != sentence:
            logger.error("%s", sentence)
        self._logged[part] = sentence

    @contextlib.contextmanager
    def _once(self, part: str) -> Iterator[None]:
        """Log what goes wrong with a part, once until it goes well."""
        try:
            yield
        except GpushimError as error:
            self._warn(part, str(error))
            if part == "snapshot":
                self.fail(error)
        else:
            self._logged.pop(part, None)
