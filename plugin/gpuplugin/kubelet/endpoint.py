"""One extended resource at kubelet: its socket, its registration.

kubelet knows one client per resource, and forgets it in ways that nobody is told of: it closes the newest connection
when an older one of the same resource ends, removes all sockets when it starts, and may be gone or another at any
time. So `attend` looks at the socket's file, at kubelet's, and at whether kubelet listens to our list, and does what
is missing. Source: Kubernetes' pkg/kubelet/cm/devicemanager, and what was measured with kubelet 1.36 and 1.37.

kubelet 1.37 knows a resource's clients by their sockets' paths. By one that it has it registers nobody, and forgets
whose it is, so that it never notices the end of that. So the socket has another name for each registration.

Two instances of this plugin with one resource, as during a rolling update: the newer one takes the path and
registers, and to kubelet 1.36 the end of the older one's stream would close its connection. So it makes kubelet
forget that connection, without ending it, by a registration that it refuses: kubelet goes on to read the list, and
ends nothing when the older one has ended. Then it registers once more, for kubelet to notice its own end.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin.kubelet import sockets, v1beta1
from gpuplugin.kubelet.service import Service
from gpuplugin.kubelet.sockets import Listener, identity, is_listening, is_socket
from gpuplugin.kubelet.v1beta1 import reader, writer
from gpuplugin.processes import counts, tasks
from gpushim.containers.kubelet import KUBELET_SOCKET
from gpushim.ground.errors import FAILED, GpushimError, visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from gpuplugin.kubelet.service import Answer, Wait
    from gpuplugin.kubelet.sockets import Identity

REGISTERING = 15.0  # seconds; kubelet dials us within that call, and has up to 10 s for it
AGAIN = 1.0  # seconds between registrations with a kubelet that forgets them at once
POLL = 1.0  # seconds between looks where nothing tells of a change
CALM = 10.0  # the same where something does, and kubelet has this resource
SOON, PATIENCE = 0.05, 200  # seconds between tries while kubelet is coming up, and how many of them
SETTLED = 2.0  # seconds in which kubelet takes a list in
LONGEST_REASON = 500  # characters of why kubelet refuses
CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class Endpoint:
    """A resource that kubelet may give out.

    Args:
        folder: kubelet's directory of device plugins, absolute.
        resource: the extended resource's name, such as nvidia.com/gpu.
        allocate: answers a ContainerAllocateRequest.
        prefer: answers a ContainerPreferredAllocationRequest.
        has_others: returns whether another instance of this plugin serves the same resource.
        meet: is awaited before another kubelet is told of this resource.
        wait: is awaited with the ids of devices before `allocate` is asked for them.

    Attributes:
        changed: set when `attend` has something to do.
        doubted: another plugin has come or gone since the last registration; it may have been for the same resource,
            and then kubelet believes news of our old stream, but asks nobody for the devices.
        watched: returns whether somebody sets `changed` when a socket comes or goes.
    """

    def __init__(
        self,
        folder: str,
        resource: str,
        allocate: Answer,
        prefer: Answer,
        has_others: Callable[[], bool] = lambda: False,
        meet: Callable[[], Awaitable[object]] = tasks.nothing,
        wait: Wait = tasks.nothing,
    ) -> None:
        self.resource, self.folder = resource, folder
        self.path = f"{folder}/{sockets.PREFIX}{resource.partition('/')[2]}{sockets.SUFFIX}"
        self.changed, self.doubted = asyncio.Event(), False
        self._service = Service(resource, allocate, prefer, self.changed.set, wait)
        self._listeners: list[Listener] = []  # the last is found at the path
        self._kubelet: Identity | None = None  # that has accepted us
        self._away = False  # another instance is found at the path
        self._has_others, self._detached = has_others, False  # kubelet would not notice our end
        self._meet = meet
        self.watched: Callable[[], bool] = lambda: False
        self._registered = self._since = 0.0  # time.monotonic(); of the last list
        self._refusing: Identity | None = None  # a kubelet's socket
        self._refused = 0  # connections by it, one after the other

    def offer(self, devices: Collection[Mapping[str, Any] | bytes]) -> None:
        """Send the list of devices, which `v1beta1.write_list` takes, to kubelet.

        Raises:
            GpushimError: it is more than kubelet reads.
        """
        if self._service.offer(devices):
            self._since = time.monotonic()
            if self.doubted:
                self.forgotten()

    def repeat(self) -> None:
        """Send the same list once more."""
        self._service.repeat()

    async def keep(self) -> None:
        """Attend this resource as long as the plugin runs."""
        logged = ""
        while True:
            try:
                pause, problem = await self.attend(), ""
            except GpushimError as error:
                pause, problem = POLL, str(error)
            if problem and problem != logged:  # once, not every second
                logger.error("%s", problem)
            logged = problem
            await tasks.until(self.changed, pause)
            self.changed.clear()

    def forgotten(self) -> None:
        """Note that kubelet has, or may have, nothing of ours, though it reads our list."""
        self._kubelet = None
        self.changed.set()

    @property
    def listed(self) -> bool:
        """Return whether kubelet has registered this, and been sent the current list."""
        return self._kubelet is not None and self._service.listed and not self._away

    @property
    def served(self) -> bool:
        """Return whether kubelet has this from us, or from another instance that is found at the path."""
        return self.listed or self._away

    @property
    def settled(self) -> bool:
        """Return whether kubelet was sent the list long enough ago to have taken it in."""
        return self.listed and time.monotonic() - max(self._registered, self._since) > SETTLED

    async def attend(self) -> float:
        """Bind or register where that is missing; return the seconds after which to look again at the latest.

        Raises:
            GpushimError: the socket cannot be made, or kubelet refuses.
        """
        self._away = not await self._ensure_bound()
        self._service.set_quiet(self._away)
        if self._away:
            return POLL
        path = f"{self.folder}/{KUBELET_SOCKET}"
        kubelet = identity(path)
        is_known = kubelet is not None and kubelet == self._kubelet and self._service.read
        if is_known and not self._detached and self.watched():
            return CALM
        if kubelet is None or (is_known and (not self._detached or self._has_others())):
            return POLL
        pause = self._registered + AGAIN - time.monotonic()
        if kubelet == self._kubelet and pause > 0 and not is_known:
            return pause
        self._service.newest, self.doubted = None, False
        if kubelet != self._kubelet:
            await self._meet()
        if not is_listening(path) or not await self._register(path):  # it is between bind and listen, or dead
            self._refused = self._refused + 1 if self._refusing == kubelet else 1
            self._refusing = kubelet
            return SOON if self._refused < PATIENCE else POLL / 2
        counts.add(counts.REGISTRATIONS, self.resource)
        logger.info("kubelet has registered %s", self.resource)
        self._detached = self._has_others() and await self._detach(path)
        self._refusing, self._kubelet, self._registered = None, kubelet, time.monotonic()
        return AGAIN

    async def _ensure_bound(self) -> bool:
        """Bind the socket if it is not there; return False while another instance has taken the path over."""
        read = {stream.listener for stream in self._service.readers}
        for old in [listener for listener in self._listeners[:-1] if listener not in read]:
            self._listeners.remove(old)
            await old.stop()
        inode = identity(self.path)
        if self._listeners:
            if inode == self._listeners[-1].inode:
                return True
            if is_socket(self.path) and is_listening(self.path):
                return False
        listener = Listener(self.path)
        await listener.bind(self._service.handlers(listener))
        if self._listeners:  # not before: it may fail each second
            logger.warning("%s was %s, and is made again", self.path, "dead" if inode else "gone")
        self._listeners.append(listener)
        self._kubelet = None  # what it knew last may have been another instance
        return True

    async def _detach(self, kubelet: str) -> bool:
        """Make kubelet forget the connection that reads our list; return False if it has made another instead."""
        self._service.refusing = "gpushim-device-plugin registers by a connection that the end of another one spares"
        try:
            await self._register(kubelet)
        except GpushimError:
            return True
        finally:
            self._service.refusing = ""
        return False

    async def _register(self, kubelet: str) -> bool:
        """Register; return False if kubelet is not there after all.

        Raises:
            GpushimError: it refuses, or does not answer; or the socket is not there.
        """
        try:
            endpoint = self._listeners[-1].rename()
        except OSError as error:
            raise GpushimError(f"the socket {self.path} cannot be named anew: {error.strerror}", FAILED) from None
        request = {
            "version": v1beta1.VERSION,
            "endpoint": endpoint,
            "resource_name": self.resource,
            "options": {"get_preferred_allocation_available": True},
        }
        async with grpc.aio.insecure_channel("unix:" + kubelet, options=CHANNEL) as channel:
            call = channel.unary_unary(v1beta1.REGISTER, writer("RegisterRequest"), reader("Empty"))
            try:
                await call(request, timeout=REGISTERING)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    return False
                if not self._service.refusing:
                    counts.add(counts.REGISTRATION_ERRORS, self.resource)
                reason = visible((error.details() or "")[:LONGEST_REASON])  # it may not be kubelet that listens there
                raise GpushimError(f"kubelet does not register {self.resource}: {reason}", FAILED) from None
        return True

    def leave(self) -> None:
        """Remove the socket if it is ours."""
        for listener in self._listeners:
            listener.leave()

    async def stop(self) -> None:
        """Stop serving: remove the socket if it is ours, answer open calls, end the list's streams."""
        for stream in self._service.readers:
            stream.end()
        await asyncio.gather(*(listener.stop() for listener in self._listeners))
