"""kubelet's calls: the list of one resource's devices, sent again whenever it changes, and its answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin.kubelet import v1beta1
from gpuplugin.kubelet.v1beta1 import reader, writer
from gpuplugin.processes import counts, tasks
from gpushim.ground.errors import REQUEST, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

    from gpuplugin.kubelet.sockets import Listener

    Answer = Callable[[dict[str, Any]], dict[str, Any]]  # of one container's request
    Wait = Callable[[Collection[str]], Awaitable[object]]  # of devices' ids

# Who read the list at the same time, most: kubelet keeps the streams of former registrations. The oldest has to go.
READERS = 16
CONTAINERS = 100  # of one call, most; kubelet asks for one at a time, and an answer is larger than its request


class Reader:
    """A stream that gets the list.

    Attributes:
        listener: by which it came.
        news: set when it has something to do.
        over: it is to end.
        sent: the list that it got last.
        again: it is to get that once more.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener, self.news, self.over = listener, asyncio.Event(), False
        self.sent: bytes | None = None
        self.again = False

    def end(self) -> None:
        """End the stream, as one that was served well."""
        self.over = True
        self.news.set()


class Service:
    """One resource's methods.

    Args:
        allocate: answers a ContainerAllocateRequest.
        prefer: answers a ContainerPreferredAllocationRequest.
        ended: is called when a stream has ended.
        wait: is awaited with the ids of devices before `allocate` is asked for them.

    Attributes:
        readers: of the list, in the order of their coming.
        newest: the last that came since this was set to None.
        refusing: why kubelet is refused, if it is, when it asks for options, which is when it registers a plugin.
    """

    def __init__(
        self, resource: str, allocate: Answer, prefer: Answer, ended: Callable[[], None], wait: Wait = tasks.nothing
    ) -> None:
        self._resource, self._allocate, self._prefer = resource, allocate, prefer
        self._ended, self._wait = ended, wait
        self.readers: list[Reader] = []
        self.newest: Reader | None = None
        self.refusing = ""
        self._list = b""
        self._quiet = False

    def offer(self, devices: Collection[Mapping[str, Any] | bytes]) -> bool:
        """Send the list, as `v1beta1.write_list` takes it, to all readers, and return whether it is new.

        Raises:
            GpushimError: it is more than kubelet reads.
        """
        data = v1beta1.write_list(self._resource, devices)
        if data == self._list:
            return False
        self._list = data
        self._wake_readers()
        return True

    def repeat(self) -> None:
        """Send the list once more: kubelet writes its checkpoint at each that it gets."""
        if self.newest:
            self.newest.again = True
            self.newest.news.set()

    def set_quiet(self, quiet: bool) -> None:
        """Send no news while another instance speaks for the resource: kubelet would mix the two lists."""
        if quiet != self._quiet:
            self._quiet = quiet
            self._wake_readers()

    def _wake_readers(self) -> None:
        for stream in self.readers:
            stream.news.set()

    @property
    def read(self) -> bool:
        """Return whether the last registration's stream is there."""
        return self.newest in self.readers

    @property
    def listed(self) -> bool:
        """Return whether that stream has got the current list."""
        return self.newest is not None and self.read and self.newest.sent == self._list

    async def watch(self, listener: Listener, _: Any, context: Any) -> AsyncIterator[bytes]:
        """Serve ListAndWatch: the list at once, and again when it changes."""
        self.newest = stream = Reader(listener)
        self.readers.append(stream)
        for old in self.readers[:-READERS]:
            old.end()
        try:
            while not stream.over:
                stream.news.clear()
                data = self._list
                if (data != stream.sent or stream.again) and (stream.sent is None or not self._quiet):
                    stream.again = False
                    yield data
                    stream.sent = data
                else:
                    await stream.news.wait()
        finally:
            self.readers.remove(stream)
            self._ended()

    def handlers(self, listener: Listener) -> grpc.GenericRpcHandler:
        """Return the methods, with readers and writers of their messages."""

        def unary(work: Any, request: str, response: str) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(work, reader(request), writer(response))

        async def options(_: Any, context: Any) -> dict[str, Any]:
            if self.refusing:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusing)
            return {"get_preferred_allocation_available": True}

        async def nothing(_: Any, context: Any) -> dict[str, Any]:
            return {}

        # Partials of functions: in one of a bound method, Python 3.9 and so grpc see nothing asynchronous.
        prefer = partial(Service._serve, self, self._prefer)
        allocate = partial(Service._serve, self, self._allocate)
        rows = {
            "GetDevicePluginOptions": unary(options, "Empty", "DevicePluginOptions"),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                partial(Service.watch, self, listener), reader("Empty"), None
            ),
            "GetPreferredAllocation": unary(prefer, "PreferredAllocationRequest", "PreferredAllocationResponse"),
            "Allocate": unary(allocate, "AllocateRequest", "AllocateResponse"),
            "PreStartContainer": unary(nothing, "PreStartContainerRequest", "Empty"),
        }
        return grpc.method_handlers_generic_handler(v1beta1.DEVICE_PLUGIN, rows)

    async def _serve(
        self, answer: Answer, request: dict[str, Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> dict[str, Any]:
        try:
            requests = request["container_requests"]
            if len(requests) > CONTAINERS:
                raise GpushimError(f"kubelet asks for {len(requests)} containers at a time; ask for one", REQUEST)
            if answer is not self._allocate:
                return {"container_responses": [answer(container) for container in requests]}
            with counts.timing(counts.ALLOCATIONS, counts.ALLOCATION_ERRORS, self._resource):
                await self._wait([name for container in requests for name in container["devices_ids"]])
                return {"container_responses": [answer(container) for container in requests]}
        except GpushimError as error:
            logger.error("%s: %s", self._resource, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
