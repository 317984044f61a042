"""The resources that are registered at kubelet, each with its endpoint, and the problems that all of them share.

Out of scope: which resources there are (daemon.py), what kubelet is asked about them (kubelet_view.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation.offer import Resource
from gpuplugin.kubelet import cgroups
from gpuplugin.kubelet.endpoint import Endpoint
from gpuplugin.processes.instances import METRICS, Instances
from gpuplugin.record import grants, kubelet_state, transitions
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.allocation.allocation import Delivery
    from gpuplugin.record.grants import Request
    from gpuplugin.record.kubelet_watch import KubeletWatch
    from gpuplugin.record.record_form import Record
    from gpuplugin.settings.resources import Device
    from gpuplugin.settings.settings import Settings

    Problems = Mapping[str, str]  # sentences, by UUID of a GPU or MIG instance

AGAIN = "delete the pod, if nothing makes it anew: in a few seconds one is served"


@dataclass
class Served:
    """A resource, its endpoint, and the task that attends it."""

    resource: Resource
    endpoint: Endpoint
    task: asyncio.Task[Any]

    def tell(self) -> None:
        """Send kubelet what there is."""
        self.endpoint.offer(self.resource.listed.values())


class Registry:
    """All resources.

    Args:
        start: starts a task, and sees to what it ends with.
        watch: what kubelet has, with the record.

    Attributes:
        served: by the resource's name.
        instances: of this plugin on the node.
        on_change: is called when something was given out, or offered.
        on_refusal: is called when something could not be given out.
        watched: somebody tells what comes and goes in kubelet's directory (`changed`).
    """

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]], watch: KubeletWatch) -> None:
        self._start, self.watch, self.instances = start, watch, Instances()
        watch.repeat = self.repeat
        self.on_change: Callable[[], object] = lambda: None
        self.on_refusal: Callable[[], object] = lambda: None
        self.watched = False
        self._problems: Problems = {}
        self._held = ""  # why nothing at all is given out
        self.served: dict[str, Served] = {}
        self._offered = False

    def offer(
        self,
        devices_by_name: Mapping[str, list[Device]],
        delivery: Delivery,
        settings: Settings,
        weights: Mapping[tuple[int, int], int],
        folder: str,
    ) -> None:
        """Send kubelet what there is now; resources that are no more keep their devices, which cannot be used."""
        self._offered = True
        for name in [*devices_by_name, *(name for name in self.served if name not in devices_by_name)]:
            if name in self.served and self.served[name].endpoint.folder != folder:  # kubelet has come up elsewhere
                self.retire(name)
            entry = self.served.get(name) or self._serve(name, Resource(name, settings, delivery, self.grant), folder)
            entry.resource.obey(settings, delivery)
            row = devices_by_name.get(name, [])
            if self._held:  # not after `have`, which would say each time that a device is well, or ails otherwise
                row = [replace(device, problem=self._held) for device in row]
            entry.resource.have(row, weights)
            entry.tell()
        self.on_change()

    def grant(self, requests: Sequence[Request]) -> None:
        """Write down that a container gets something, before kubelet is told.

        Raises:
            GpushimError: it may be somebody else's, or the record cannot be written.
        """
        file, keys = self.watch.file, [request.key for request in requests]
        try:
            with file.locked() as record:
                if record is None or record["boot"] != file.boot:
                    raise GpushimError(f"{file.path} is missing, damaged or of another boot; {AGAIN}", FAILED)
                if not self.watch.is_met():
                    raise GpushimError(f"kubelet has just started, and has not been asked yet; {AGAIN}", FAILED)
                owners = self._find_owners(record, keys)
                running = cgroups.running({*owners.values()})
                busy = {key for key, uid in owners.items() if uid in running}
                file.add(*grants.grant(record, requests, system.clock(), busy))
        except GpushimError:  # kubelet takes for free what is not
            self.on_refusal()
            raise
        self.on_change()

    def _find_owners(self, record: Record, keys: Collection[str]) -> dict[str, str]:
        """Return the uids of the pods that had these devices; kubelet's checkpoint is read where somebody did."""
        if not any(key in gpu["allocations"] for gpu in record["gpus"].values() for key in keys):
            return {}
        return transitions.find_owners(record, keys, kubelet_state.read(self.watch.kubelet_dir(), None, 0.0))

    async def _wait_for_end(self, resource: str, ids: Collection[str]) -> None:
        """Wait for the last processes of the pods that had devices; kubelet frees these moments before they end."""
        keys = [f"{resource} {name}" for name in ids]
        with contextlib.suppress(GpushimError):  # `grant` tells of it
            record = self.watch.file.read_current()
            owners = await asyncio.to_thread(self._find_owners, record, keys)
            await cgroups.wait_for_end({*owners.values()})

    def _serve(self, name: str, resource: Resource, folder: str) -> Served:
        resource.mark_unhealthy(self._problems)
        self.instances.serve(name)
        has_others = partial(self.instances.others, name)
        wait = partial(self._wait_for_end, name)
        endpoint = Endpoint(folder, name, resource.allocate, resource.prefer, has_others, self.watch.meet, wait)
        endpoint.watched = lambda: self.watched
        self.served[name] = Served(resource, endpoint, self._start(endpoint.keep()))
        return self.served[name]

    def repeat(self) -> None:
        """Have kubelet write its checkpoint, which has what all plugins gave."""
        for entry in [entry for entry in self.served.values() if entry.endpoint.listed][:1]:
            entry.endpoint.repeat()

    def fail(self, problem: str) -> None:
        """Give nothing out until the next `offer`."""
        for entry in self.served.values():
            entry.resource.fail(self._held or problem)
            entry.tell()

    def hold(self, problem: str) -> None:
        """Give nothing out, whatever is offered, until it is called with ""; another `offer` follows that."""
        self._held = problem
        if problem:
            self.fail(problem)

    def mark_unhealthy(self, problems: Problems) -> None:
        """Go by what is wrong with GPUs and MIG instances beside what the snapshot says; kubelet is told at once."""
        if problems != self._problems:
            self._problems = problems
            for entry in self.served.values():
                entry.resource.mark_unhealthy(problems)
                entry.tell()

    def unready(self) -> str:
        """Return what kubelet has from no instance of ours, or ""; before the first `offer`, that it is not known."""
        missing = [name for name, entry in self.served.items() if not entry.endpoint.served]
        if not self._offered:
            missing = ["no resource is known yet"]
        return f"not registered at kubelet: {', '.join(missing)}" if missing else ""

    def state(self) -> dict[str, Any]:
        """Return the resources for metrics (gpuplugin.metrics.exposition.State)."""
        rows = self.served.items()
        resources = [(name, entry.endpoint.listed, (*entry.resource.devices.values(),)) for name, entry in rows]
        return {"resources": resources, "looks": transitions.find_admin_claims(self.watch.file.read_known())}

    def serves(self, metrics: bool) -> None:
        """Note for the DRA driver of this node whether figures of GPUs are told here."""
        (self.instances.serve if metrics else self.instances.cease)(METRICS)

    def changed(self) -> None:
        """Have kubelet's socket and ours looked at again."""
        for entry in self.served.values():
            entry.endpoint.changed.set()

    def forgotten(self) -> None:
        """Register all again; kubelet has the devices all the while."""
        for entry in self.served.values():
            entry.endpoint.forgotten()

    def retire(self, name: str) -> None:
        """Register a resource no more."""
        entry = self.served.pop(name)
        entry.task.cancel()
        self.instances.cease(name)
        entry.endpoint.leave()
        self._start(entry.endpoint.stop())

    async def stop(self) -> None:
        """Serve no more."""
        await asyncio.gather(*(entry.endpoint.stop() for entry in self.served.values()))
        self.instances.leave()
