"""One extended resource at kubelet: its list of devices, its socket, its registration.

kubelet knows one client per resource, and forgets it in ways that nobody is told of: it closes the newest connection
when an older one of the same resource ends, removes all sockets when it starts, and may be gone or another at any
time. So `attend` looks at the socket's file, at kubelet's, and at whether kubelet listens to our list, and does what
is missing. Source: Kubernetes' pkg/kubelet/cm/devicemanager, and what was measured with kubelet 1.36.
Out of scope: which devices there are (resources.py) and what a container gets (allocation.py).
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin import v1beta1
from gpuplugin.sockets import Listener, identity, listening
from gpuplugin.v1beta1 import reader, writer
from gpushim.errors import FAILED, GpushimError
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from gpuplugin.sockets import Identity

    Answer = Callable[[dict[str, Any]], dict[str, Any]]  # of one container's request

REGISTERING = 15.0  # seconds; kubelet dials us within that call, and has up to 10 s for it
AGAIN = 1.0  # seconds between registrations with a kubelet that forgets them at once
POLL = 1.0  # seconds between looks where nothing tells of a change
SOON, PATIENCE = 0.05, 200  # seconds between tries while kubelet is coming up, and how many of them
CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class Endpoint:
    """A resource that kubelet may give out.

    Args:
        folder: kubelet's directory of device plugins, absolute.
        resource: the extended resource's name, such as nvidia.com/gpu.
        allocate: answers a ContainerAllocateRequest.
        prefer: answers a ContainerPreferredAllocationRequest.

    Attributes:
        registrations: how many kubelet has accepted.
    """

    def __init__(self, folder: str, resource: str, allocate: Answer, prefer: Answer) -> None:
        self.resource, self.folder = resource, folder
        self.path = f"{folder}/gpushim-{resource.partition('/')[2]}.sock"
        self.registrations = 0
        self._devices = b""
        self._allocate, self._prefer = allocate, prefer
        self._streams: list[asyncio.Event] = []  # of those who read the list, in the order of their coming
        self._newest: asyncio.Event | None = None  # the last that came since the registration
        self._listeners: list[Listener] = []  # the last is found at the path
        self._kubelet: Identity | None = None  # that has accepted us
        self._registered = 0.0  # time.monotonic()
        self._refused = 0  # connections, one after the other
        self.changed = asyncio.Event()  # set when `attend` has something to do

    def offer(self, devices: Sequence[Mapping[str, Any]]) -> None:
        """Tell kubelet what there is.

        Args:
            devices: Device messages, all of them.

        Raises:
            GpushimError: it is more than kubelet reads.
        """
        data = writer("ListAndWatchResponse")({"devices": list(devices)})
        if len(data) > v1beta1.LIST_LIMIT:
            raise GpushimError(
                f"the list of {self.resource} has {len(devices)} devices and {len(data)} bytes, and kubelet reads "
                f"{v1beta1.LIST_LIMIT}; give out fewer replicas",
                FAILED,
            )
        if data != self._devices:
            self._devices = data
            for news in self._streams:
                news.set()

    async def watched(self, listener: Listener, _: Any, context: Any) -> AsyncIterator[bytes]:
        """Serve ListAndWatch: the list now, and again when it changes."""
        self._newest = news = asyncio.Event()
        self._streams.append(news)
        listener.streams += 1
        sent = None
        try:
            while True:
                if sent != self._devices:
                    sent = self._devices
                    yield sent
                await news.wait()
                news.clear()
        finally:
            listener.streams -= 1
            self._streams.remove(news)
            self.changed.set()

    async def keep(self) -> None:
        """Attend this resource as long as the plugin runs."""
        told = ""
        while True:
            try:
                pause, trouble = await self.attend(), ""
            except GpushimError as error:
                pause, trouble = POLL, str(error)
            if trouble and trouble != told:  # once, not every second
                logger.error("%s", trouble)
            told = trouble
            await _set(self.changed, pause)
            self.changed.clear()

    def forgotten(self) -> None:
        """Take note that kubelet has nothing of ours, though it reads our list."""
        self._kubelet = None
        self.changed.set()

    @property
    def known(self) -> bool:
        """Whether kubelet has registered this and reads its list."""
        return self._kubelet is not None and self._newest in self._streams

    async def attend(self) -> float:
        """Do what is missing for kubelet to know this resource.

        Returns:
            seconds after which to look again, if nothing has changed before.

        Raises:
            GpushimError: the socket cannot be made, or kubelet refuses.
        """
        if not await self._bound():
            return POLL
        path = f"{self.folder}/{v1beta1.KUBELET_SOCKET}"
        kubelet = identity(path)
        if kubelet is None or (kubelet == self._kubelet and self._newest in self._streams):
            return POLL
        soon = self._registered + AGAIN - time.monotonic()
        if kubelet == self._kubelet and soon > 0:
            return soon
        if not listening(path):  # it is between bind and listen, or dead
            self._refused += 1
            return SOON if self._refused < PATIENCE else POLL / 2
        self._refused, self._newest = 0, None
        await self._register(path)
        self._kubelet, self._registered = kubelet, time.monotonic()
        return AGAIN

    async def _bound(self) -> bool:
        """See to it that the socket is there; False while another instance has taken it over."""
        for old in [one for one in self._listeners[:-1] if not one.streams]:
            self._listeners.remove(old)
            await old.stop()
        if self._listeners:
            there = identity(self.path)
            if there == self._listeners[-1].inode:
                return True
            if there is not None and listening(self.path):
                return False
            logger.warning("%s is %s, and is made anew", self.path, "dead" if there else "gone")
        listener = Listener(self.path)
        await listener.bind(_handlers(self, listener, self._allocate, self._prefer))
        self._listeners.append(listener)
        self._kubelet = None  # what it knew last may have been another instance
        return True

    async def _register(self, kubelet: str) -> None:
        request = {
            "version": v1beta1.VERSION,
            "endpoint": self.path.rpartition("/")[2],
            "resource_name": self.resource,
            "options": {"get_preferred_allocation_available": True},
        }
        async with grpc.aio.insecure_channel("unix:" + kubelet, options=CHANNEL) as channel:
            call = channel.unary_unary(v1beta1.REGISTER, writer("RegisterRequest"), reader("Empty"))
            try:
                await call(request, timeout=REGISTERING)
            except grpc.aio.AioRpcError as error:
                raise GpushimError(f"kubelet does not register {self.resource}: {error.details()}", FAILED) from None
        self.registrations += 1
        logger.info("kubelet has registered %s", self.resource)

    async def stop(self) -> None:
        """Serve no more, and remove the socket if it is ours."""
        await asyncio.gather(*(listener.stop() for listener in self._listeners))


async def _set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than so many seconds.

    asyncio.wait_for forgets before Python 3.12 that it was cancelled, if the event is set just then.
    """
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        waiter.cancel()


def _handlers(endpoint: Endpoint, listener: Listener, allocate: Answer, prefer: Answer) -> grpc.GenericRpcHandler:
    """Name the service's methods, with what reads and writes their messages."""

    def unary(work: Any, request: str, response: str) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(work, reader(request), writer(response))

    async def options(_: Any, context: Any) -> dict[str, Any]:
        return {"get_preferred_allocation_available": True}

    async def nothing(_: Any, context: Any) -> dict[str, Any]:
        return {}

    def each(answer: Answer) -> Any:
        async def serve(request: dict[str, Any], context: grpc.aio.ServicerContext[Any, Any]) -> dict[str, Any]:
            try:
                return {"container_responses": [answer(one) for one in request["container_requests"]]}
            except GpushimError as error:
                logger.error("%s: %s", endpoint.resource, error)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                raise

        return serve

    watched = grpc.unary_stream_rpc_method_handler(partial(endpoint.watched, listener), reader("Empty"), None)
    return grpc.method_handlers_generic_handler(
        v1beta1.DEVICE_PLUGIN,
        {
            "GetDevicePluginOptions": unary(options, "Empty", "DevicePluginOptions"),
            "ListAndWatch": watched,
            "GetPreferredAllocation": unary(
                each(prefer), "PreferredAllocationRequest", "PreferredAllocationResponse"
            ),
            "Allocate": unary(each(allocate), "AllocateRequest", "AllocateResponse"),
            "PreStartContainer": unary(nothing, "PreStartContainerRequest", "Empty"),
        },
    )
