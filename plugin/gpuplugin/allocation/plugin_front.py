"""The device plugin: from the snapshot to kubelet, and from kubelet's Allocate to its answer.

Each resource of the snapshot has an endpoint at kubelet. Looked at again and again are kubelet's directory, and what
kubelet says that it has. An Allocate is written into the record before it is answered.
Out of scope: the loop, the snapshot and health (daemon.py), the wire (endpoint.py, service.py), names and values
(offer.py, settings.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation import plugin_status
from gpuplugin.allocation.allocators import Allocators
from gpuplugin.allocation.kubelet_view import KubeletView
from gpuplugin.allocation.offer import absent, offered
from gpuplugin.allocation.registry import Registry
from gpuplugin.cluster.labels_file import LabelsFile
from gpuplugin.devices import preferred
from gpuplugin.health import reason
from gpuplugin.kubelet import podresources
from gpuplugin.metrics.exposition import FrontState
from gpuplugin.mps.mps import Units
from gpuplugin.processes import moments
from gpuplugin.record import allocations_file
from gpuplugin.record.kubelet_watch import TICK
from gpushim.containers.kubelet import which
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuplugin.health.reason import Reason
    from gpuplugin.record.kubelet_watch import KubeletWatch
    from gpuplugin.settings.settings import Settings
    from gpuplugin.snapshot.inotify import Watch
    from gpushim.containers.kubelet import Claim
    from gpushim.ground.model import Snapshot

WAIT = 2.0  # seconds between looks while there is no snapshot to go by
LONGEST = 4.0  # seconds between decisions while somebody has something in another way
CALM = 20.0  # a decision that is made again and again has at most one part in so many of the loop


class PluginFront:
    """The device plugin (gpuplugin.daemon.Front).

    Args:
        settings: returns those in force.
        watch: what kubelet has, with the record.
        start: starts a task, and sees to what it ends with.
        wake: has all looked at again.
    """

    name, program = "device-plugin", "the device plugin"

    def __init__(
        self,
        settings: Callable[[], Settings],
        watch: KubeletWatch,
        start: Callable[[Any], asyncio.Task[Any]],
        wake: Callable[[], None],
    ) -> None:
        self._settings, self._start, self._wake = settings, start, wake
        self._registry = Registry(start, watch)
        self._view = KubeletView(self._registry)
        self.unready, self.serves = self._registry.unready, self._registry.serves
        self._seen: object = None  # of what kubelet was told
        self._again = 0.0  # time.monotonic() at which that is looked at again, for something waits
        self._pause = TICK  # seconds until that, longer each time that nothing is new: a claim may stay for days
        self._started, self._held = False, ""
        self._noted: set[str] = set()
        self._reasons: dict[str, list[Reason]] = {}  # of what is sick, by UUID
        self._units, self._labels = Units(start), LabelsFile(start)

    async def begin(self) -> None:
        """Begin to ask kubelet and others who give out GPUs, and wait for their first answers, but not for long."""
        self._allocators = Allocators(self._registry, self._settings, self._wake)
        for part in (self._view, self._allocators):
            self._start(part.keep())
        await self._allocators.first()

    async def stop(self) -> None:
        """Serve no more."""
        await self._registry.stop()

    def watch(self, watch: Watch) -> bool:
        """Have directories watched; return whether nothing told what came to one until now."""
        is_new = watch.add(*self._allocators.folders(), self._view.folder(), *self._view.folders())
        self._registry.watched = watch.tells(self._view.folder()) and watch.tells(allocations_file.folder())
        return is_new

    def changed(self, paths: Collection[str]) -> None:
        """Have kubelet and the others asked again, as these paths came or went."""
        (self._view.note_foreign_socket if self._allocators.doubt(paths) else self._view.look)()
        self._registry.changed()

    def obey(self, before: Settings, asked: bool) -> bool:
        """Go by other settings. If a signal asked for that, all is registered again.

        Not without that: kubelet refuses the pod that it is admitting just then.
        """
        self._seen = None
        if asked and before.values["kubelet-dir"] == self._settings().values["kubelet-dir"]:
            self._registry.forgotten()
        return True

    def hold(self, problem: str) -> None:
        """Give nothing out, until it is called with ""; look at all again in either case."""
        self._started, self._held, self._seen = True, problem, None
        self._registry.hold(problem)

    async def look(self, snapshot: Snapshot | None) -> float:
        """Go by a snapshot that kubelet was not told of.

        Returns:
            seconds after which to look again.

        Raises:
            GpushimError: from the start no GPU can be given out, and the settings say not to wait.
        """
        if snapshot is None:
            return WAIT
        settings, identity = self._settings(), (self._view.folder(), self._view.identify(ensure.SNAPSHOT), snapshot)
        self._labels.look(snapshot, settings)
        if not self._held and self._units.look(snapshot, settings):
            self._seen = None
        rest = self._again - time.monotonic()
        if identity == self._seen and rest > 0:  # or two that wait wake each other
            return min(rest, moments.until())  # inotify may not tell of a change
        return await self._go_by(snapshot, identity)

    async def _go_by(self, snapshot: Snapshot, identity: object) -> float:
        """Have kubelet told what a snapshot has; return seconds after which to look again.

        Raises:
            GpushimError: as for `fail`.
        """
        notes: list[str] = []
        settings, waits, begun = self._settings(), False, time.thread_time()
        try:
            waits = await self._offer(snapshot, notes)
        except GpushimError as error:
            self.fail(error)
            notes.append(f"no device is given out: {error}")
        else:
            self._started = True
            self._pause = min(2 * self._pause, LONGEST) if identity == self._seen else TICK
            self._seen = None if settings is not self._settings() else identity
            self._again = time.monotonic() + (self._pause if waits else float("inf"))
        for note in sorted({*notes} - self._noted, key=notes.index):
            logger.warning("%s", note)
        self._noted = {*notes}
        return max(self._pause if waits else moments.until(), CALM * (time.thread_time() - begun))

    async def _offer(self, snapshot: Snapshot, notes: list[str]) -> bool:
        """Have kubelet told what a snapshot has.

        Returns:
            whether something is kept as it was, since a pod has it.

        Raises:
            GpushimError: its devices cannot be given out.
        """
        settings = self._settings()
        desired, delivery = offered(snapshot, settings, notes)
        notes += absent(settings)
        notes += ["no device is given out: this host has no GPU, or exclude leaves all of them out"] * (not desired)
        weights = preferred.nearness({gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]})
        decided = await self._view.decide(desired, snapshot)
        if settings is self._settings():  # else they were read again meanwhile
            self._registry.offer(decided, delivery, settings, weights, self._view.folder())
        return decided != desired

    def judge(self, reasons: Mapping[str, list[Reason]], snapshot: Snapshot) -> None:
        """Have kubelet told at once what is wrong with GPUs; their replicas and MIG instances are sick with them."""
        self._reasons = self._allocators.added(reasons, snapshot)
        self._registry.mark_unhealthy(reason.texts(self._reasons, snapshot))

    def fail(self, error: GpushimError) -> None:
        """Give nothing out until there is a snapshot to go by.

        Raises:
            GpushimError: it is so from the start, and the settings say not to wait.
        """
        if self._settings().values["fail-on-init-error"] and not self._started:
            raise error
        self._seen = None
        self._registry.fail(reason.brief(str(error)))

    async def status(self) -> dict[str, Any]:
        """Return members of what root is told who asks."""
        served = self._registry.served
        listed = await podresources.listed(str(self._settings().values["kubelet-dir"]))
        holders = listed and [row for row in listed.devices if row["resource"] in served]
        copies = [plugin_status.resource(served_resource) for served_resource in served.values()]
        return {
            "resources": await asyncio.to_thread(plugin_status.resources, copies, self._reasons, holders),
            "pods": holders,
            "claims": self._list_claims(listed.claims) if listed else [],
            "givers": self._allocators.clauses,
            "notes": [self._labels.problem, *sorted(self._noted), *self._allocators.notes],
        }

    def _list_claims(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return those that have or may have GPUs of this node, but an administrator's of gpushim's driver."""
        snapshot, looks = self._registry.watch.snapshot, self._registry.state()["looks"]
        return [
            claim
            for claim in claims
            if snapshot
            and which(claim, snapshot) != frozenset()
            and (claim.namespace, claim.name, claim.device) not in looks
        ]

    def state(self) -> FrontState:
        """Return what its metrics tell."""
        return FrontState(reasons=self._reasons, **self._registry.state())

    def gpus(self) -> bool:
        """Return that figures of GPUs are told here."""
        return True
