"""From the snapshot to kubelet, and from kubelet's Allocate to its answer: the whole story, top to bottom.

There is an endpoint at kubelet for each resource of the snapshot. Three things are looked at again and again: the
snapshot, which `gpushim refresh` renews, a child with a deadline (NVML is never called here); kubelet's directory;
and what kubelet says that it has. An Allocate is answered from memory.
Out of scope: the wire (endpoint.py), names and values (resources.py, allocation.py, preferred.py, settings.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin import allocation, podresources, preferred, resources
from gpuplugin.allocation import Ways
from gpuplugin.endpoint import Endpoint
from gpuplugin.resources import Device
from gpuplugin.v1beta1 import HEALTHY, UNHEALTHY
from gpuplugin.watch import Watch
from gpushim import stamp
from gpushim.errors import INVENTORY, REQUEST, GpushimError
from gpushim.inventory import ensure, renew
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.preferred import Choice
    from gpuplugin.settings import Settings
    from gpushim.model import Snapshot

LOOK = 5.0  # seconds between looks at the snapshot, where nothing tells of a change
ASK = 10.0  # seconds between questions to kubelet
GONE = "the host does not have it any more"


class Resource:
    """A resource: what there is of it, and its answers to kubelet.

    Args:
        name: such as nvidia.com/gpu.
        settings: in force.
        ways: how containers are told.
    """

    def __init__(self, name: str, settings: Settings, ways: Ways) -> None:
        self.name, self._settings, self._ways = name, settings, ways
        self.devices: dict[str, Device] = {}
        self._choose: Choice = preferred.shared((), packed=False)

    def have(self, devices: Sequence[Device], weights: Mapping[tuple[int, int], int]) -> None:
        """Take over what the host has; what it had and has not is kept, and cannot be used.

        kubelet 1.36 crashes if a device leaves the list while it allocates it.
        """
        now = {device.id: device for device in devices}
        gone = {key: replace(one, problem=GONE) for key, one in self.devices.items() if key not in now}
        self.devices = {**now, **gone}
        whole = all(device.id == device.uuid and ":" not in device.index for device in devices)
        packed = self._settings.values["allocation-policy"] == "packed"
        self._choose = preferred.nearest(devices, weights) if whole else preferred.shared(devices, packed)

    def drop(self, ids: set[str]) -> None:
        """Forget devices that the host does not have any more."""
        for name in ids:
            del self.devices[name]

    @property
    def gone(self) -> set[str]:
        """The devices that the host does not have any more."""
        return {name for name, device in self.devices.items() if device.problem == GONE}

    def listed(self) -> list[dict[str, Any]]:
        """Say what there is as Device messages."""
        return [
            {
                "ID": one.id,
                "health": UNHEALTHY if one.problem else HEALTHY,
                **({"topology": {"nodes": [{"ID": one.numa}]}} if one.numa >= 0 else {}),
            }
            for one in self.devices.values()
        ]

    def allocate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerAllocateRequest.

        Raises:
            GpushimError: a device of it cannot be given.
        """
        ids = request["devices_ids"]
        found = allocation.check(ids, self.name, self.devices)
        if self._settings.single and len(ids) > 1 and any("::" in name for name in ids):
            raise GpushimError(
                f"a container asks for {len(ids)} of {self.name}, which is shared, and failRequestsGreaterThanOne "
                "is true: more of it is not more of a GPU; ask for 1",
                REQUEST,
            )
        return allocation.answer(found, self.name, self._ways)

    def prefer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ContainerPreferredAllocationRequest."""
        must, size = request["must_include_deviceIDs"], request["allocation_size"]
        return {"deviceIDs": self._choose(request["available_deviceIDs"], must, size)}


class Plugin:
    """The daemon.

    Args:
        settings: in force.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.values["kubelet-dir"] + "/device-plugins"
        self._resources: dict[str, tuple[Resource, Endpoint]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._seen: object = None  # identity of the snapshot's file that was read last
        self._quarantined: dict[str, set[str]] = {}
        self._child = 0
        self._again = 0.0  # time.monotonic() before which refresh is not started anew
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            GpushimError: the host cannot serve GPUs, and the settings say not to wait.
        """
        loop, watch, ending = asyncio.get_running_loop(), Watch(), asyncio.Event()

        def end() -> None:
            ending.set()
            self._wake.set()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, end)
        loop.add_reader(watch.fd, self._changed, watch)
        self._spawn(self._question())
        try:
            while not ending.is_set():
                watch.add(os.path.dirname(self._folder), self._folder, stamp.state_dir())
                self._look()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), LOOK)
                self._wake.clear()
        finally:
            loop.remove_reader(watch.fd)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*(endpoint.stop() for _, endpoint in self._resources.values()))

    def _changed(self, watch: Watch) -> None:
        """Have everything looked at again."""
        watch.clear()
        self._wake.set()
        for _, endpoint in self._resources.values():
            endpoint.changed.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look(self) -> None:
        """Go by the snapshot; have it renewed if it is out of date."""
        config, state = stamp.config_path(), stamp.state_dir()
        found = ensure.read(config, state)
        if found is None:
            self._refresh()
            return
        seen = stamp.identity(f"{state}/{ensure.SNAPSHOT}")
        if seen == self._seen:
            return
        self._seen = seen
        self._offer(found)

    def _refresh(self) -> None:
        """Start `gpushim refresh`, unless one of ours runs or has just failed."""
        if self._child or time.monotonic() < self._again:
            return
        words = renew.command()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        # Not a fork: threads of grpc's hold locks. The pipe is at its end when the child is.
        self._child = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 0)])
        os.close(writing)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(reading)
            os.close(reading)
            os.waitpid(self._child, 0)
            self._child, self._again = 0, time.monotonic() + LOOK
            self._wake.set()

        loop.add_reader(reading, ended)

    def _offer(self, snapshot: Snapshot) -> None:
        """Tell kubelet what a snapshot has.

        Raises:
            GpushimError: there is nothing to tell, from the start, and the settings say not to wait.
        """
        notes: list[str] = []
        try:
            found = offered(snapshot, self._settings, notes)
        except GpushimError as error:
            if self._settings.values["fail-on-init-error"] and not self._resources:
                raise
            found = {}  # what there was cannot be given out
            notes.append(f"no device is given out: {error}")
        for note in notes:
            logger.warning("%s", note)
        weights = preferred.nearness({gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]})
        for name in [*found, *(name for name in self._resources if name not in found)]:
            if name not in self._resources:
                self._add(name, snapshot)
            resource, endpoint = self._resources[name]
            resource.have(found.get(name, []), weights)
            endpoint.offer(resource.listed())

    def _add(self, name: str, snapshot: Snapshot) -> None:
        resource = Resource(name, self._settings, ways(self._settings, snapshot))
        endpoint = Endpoint(self._folder, name, resource.allocate, resource.prefer)
        self._resources[name] = resource, endpoint
        self._spawn(endpoint.keep())

    async def _question(self) -> None:
        """Ask kubelet, again and again, whether it has what it was told, and who has what is gone."""
        folder = self._settings.values["kubelet-dir"]
        while True:
            await asyncio.sleep(ASK)
            if any(endpoint.known for _, endpoint in self._resources.values()):
                self._remind(await podresources.allocatable(folder))
            if any(resource.gone for resource, _ in self._resources.values()):
                await self._drop(folder)

    def _remind(self, has: Mapping[str, set[str]] | None) -> None:
        """Register anew what kubelet reads the list of and has nothing of: another plugin's end made it forget."""
        if has is None:
            return
        for name, (resource, endpoint) in self._resources.items():
            well = {key for key, one in resource.devices.items() if not one.problem}
            if well and endpoint.known and well.isdisjoint(has.get(name, ())):
                logger.warning("kubelet has no device of %s, and is told again", name)
                endpoint.forgotten()

    async def _drop(self, folder: str) -> None:
        """Take devices off the list that were gone a question ago, and that no pod has had since."""
        held = await podresources.held(folder)
        if held is None:
            return
        for name, (resource, endpoint) in self._resources.items():
            free = resource.gone - held.get(name, set())
            dropped = free & self._quarantined.get(name, set())
            resource.drop(dropped)
            self._quarantined[name] = free - dropped
            if dropped:
                endpoint.offer(resource.listed())


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


def offered(snapshot: Snapshot, settings: Settings, notes: list[str]) -> dict[str, list[Device]]:
    """List the resources of a node as the settings have them.

    Args:
        snapshot: of its inventory.
        settings: in force.
        notes: gets a sentence for each thing that is left out.

    Raises:
        GpushimError: the host cannot serve GPUs, or not as the settings say.
    """
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    found = resources.find(snapshot, settings.values["mig-strategy"], settings.values["exclude"], notes)
    notes += allocation.clash(ways(settings, snapshot), [*found])
    return dict(_shared(name, devices, settings) for name, devices in found.items())


def ways(settings: Settings, snapshot: Snapshot) -> Ways:
    """Say how containers are told their devices."""
    values, nodes = settings.values, snapshot["nodes"]
    control = [path for path in allocation.CONTROL_NODES if path in nodes] if values["pass-device-specs"] else None
    return Ways(
        ways=values["device-list-strategy"],
        by_index=values["device-id-strategy"] == "index",
        kind=snapshot["policy"]["cdi"]["kind"],
        annotation_prefix=values["cdi-annotation-prefix"],
        features=[name for name in allocation.FEATURES if values[name]],
        imex=_channels(values, nodes),
        control=control,
        dev_root=snapshot["driver"]["dev-root"],
    )


def _channels(values: Mapping[str, Any], nodes: Mapping[str, Any]) -> list[int]:
    wanted: list[int] = values["imex-channels"]
    missing = [one for one in wanted if f"{allocation.CHANNEL}{one}" not in nodes]
    if missing and values["imex-required"]:
        raise GpushimError(
            f"imex-required is true, and this host has no IMEX channel {missing[0]}; nvidia-modprobe makes it",
            INVENTORY,
        )
    return [one for one in wanted if one not in missing]


def _shared(name: str, devices: list[Device], settings: Settings) -> tuple[str, list[Device]]:
    """Give a resource its replicas, and the name that tells of them."""
    replicas = settings.replicas.get(name, 1)
    if replicas == 1:
        return name, devices
    return name + ".shared" * settings.renamed, resources.replicated(devices, replicas)
