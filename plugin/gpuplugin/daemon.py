"""From the snapshot to kubelet, and from kubelet's Allocate to its answer: the whole story, top to bottom.

There is an endpoint at kubelet for each resource of the snapshot. Three things are looked at again and again: the
snapshot, which `gpushim refresh` renews, a child with a deadline (NVML is never called here); kubelet's directory;
and what kubelet says that it has. An Allocate is answered from memory.
Out of scope: the wire (endpoint.py), names and values (offer.py, settings.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from gpuplugin import podresources, preferred
from gpuplugin.endpoint import Endpoint
from gpuplugin.offer import Resource, offered, ways
from gpuplugin.watch import Watch
from gpushim import stamp
from gpushim.errors import GpushimError
from gpushim.inventory import ensure, renew
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.settings import Settings
    from gpushim.model import Snapshot

LOOK = 3.0  # seconds between looks at the snapshot, where nothing tells of a change; a driver is seen within 5
ASK = 10.0  # seconds between questions to kubelet


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
