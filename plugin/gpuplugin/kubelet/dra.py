"""kubelet's API of DRA drivers: registration, preparing claims (v1, v1beta1) and health (v1alpha1).

A driver has two sockets: one in plugins_registry, by which kubelet finds it, and one of its own for the calls.
Nobody tells it that kubelet has gone, or has forgotten it: the end of the health stream, which kubelet 1.36 opens
with each registration, and its own sockets' files show it.
Source: pkg/apis/pluginregistration/v1, pkg/apis/dra/v1 and dra-health/v1alpha1 of
https://github.com/kubernetes/kubelet.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin.kubelet import sockets
from gpuplugin.kubelet.plugins import DRIVER, REGISTRY
from gpuplugin.kubelet.sockets import Listener, identity
from gpuplugin.processes.tasks import until
from gpushim.containers import protobuf
from gpushim.ground.errors import FAILED, GpushimError, visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    Claim = Mapping[str, str]  # "namespace", "uid", "name"
    Device = dict[str, Any]  # "request_names", "pool_name", "device_name", "cdi_device_ids", "share_id"
    # Each claim's devices by its uid, or a sentence why it cannot have them.
    Prepare = Callable[[Sequence[Claim]], Awaitable[Mapping[str, list[Device] | str]]]
    Unprepare = Callable[[Sequence[Claim]], Awaitable[None]]
    Health = Callable[[], list[dict[str, Any]]]  # DeviceHealth messages of all devices

UNKNOWN, HEALTHY, UNHEALTHY = range(3)  # HealthStatus
REPEAT = 20.0  # seconds; a device that kubelet does not hear of for 30 s, or as long as a message says, is Unknown
# Of kubelet's one connection: a prepare may wait for 40 s, one for each pod that starts, and unprepare shall not.
STREAMS = 1024  # more than a node has pods
CLAIMS = 256  # of one call, most; kubelet asks for those of one pod
REASON = 500  # characters of why kubelet refuses
FOLDER = "plugins"  # in kubelet's directory, has one of each driver
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")  # kubelet takes the first it knows
PREPARING = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")
HEALTH, REGISTRATION = "v1alpha1.DRAResourceHealth", "pluginregistration.Registration"

_NAMES = ("string", True)
_TEXT = ("string", False)
MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Empty": {},
    "PluginInfo": {1: ("type", *_TEXT), 2: ("name", *_TEXT), 3: ("endpoint", *_TEXT), 4: ("versions", *_NAMES)},
    "RegistrationStatus": {1: ("registered", "bool", False), 2: ("error", *_TEXT)},
    "Claim": {1: ("namespace", *_TEXT), 2: ("uid", *_TEXT), 3: ("name", *_TEXT)},
    "Claims": {1: ("claims", "Claim", True)},
    "Device": {
        1: ("request_names", *_NAMES),
        2: ("pool_name", *_TEXT),
        3: ("device_name", *_TEXT),
        4: ("cdi_device_ids", *_NAMES),
        5: ("share_id", *_TEXT),
    },
    "Prepared": {1: ("devices", "Device", True), 2: ("error", *_TEXT)},
    "PreparedEntry": {1: ("key", *_TEXT), 2: ("value", "Prepared", False)},
    "PreparedClaims": {1: ("claims", "PreparedEntry", True)},
    "Unprepared": {1: ("error", *_TEXT)},
    "UnpreparedEntry": {1: ("key", *_TEXT), 2: ("value", "Unprepared", False)},
    "UnpreparedClaims": {1: ("claims", "UnpreparedEntry", True)},
    "DeviceName": {1: ("pool_name", *_TEXT), 2: ("device_name", *_TEXT)},
    "DeviceHealth": {
        1: ("device", "DeviceName", False),
        2: ("health", "int32", False),
        3: ("last_updated_time", "int64", False),
        4: ("health_check_timeout_seconds", "int64", False),
        5: ("message", *_TEXT),
    },
    "Devices": {1: ("devices", "DeviceHealth", True)},
}


def _unary(work: Any, request: str, response: str) -> grpc.RpcMethodHandler[Any, Any]:
    reader = partial(protobuf.decode, MESSAGES, request)
    return grpc.unary_unary_rpc_method_handler(work, reader, partial(protobuf.encode, MESSAGES, response))


class Driver:
    """A driver, as kubelet has it.

    Args:
        name: the driver's, such as gpu.nvidia.com.
        kubelet_dir: kubelet's directory, absolute.
        changed: is called when `registered` may be another.

    Attributes:
        refused: why kubelet has not registered it, or "".
    """

    def __init__(
        self,
        name: str,
        kubelet_dir: str,
        prepare: Prepare,
        unprepare: Unprepare,
        health: Health,
        changed: Callable[[], object],
    ) -> None:
        self._name = name
        self._prepare, self._unprepare, self._health, self._changed = prepare, unprepare, health, changed
        own = os.urandom(4).hex()  # of this instance: two run side by side during an update
        self._served: Listener | None = None
        self._found: Listener | None = None
        self.folder = f"{kubelet_dir}/{FOLDER}/{name}"
        self.registry = f"{kubelet_dir}/{REGISTRY}"
        self._endpoint = f"{self.folder}/{sockets.PREFIX}{own}{sockets.SUFFIX}"
        self._path = f"{self.registry}/{sockets.PREFIX}{own}{sockets.SUFFIX}"
        self._notified = self._streamed = False
        self._streams: set[asyncio.Event] = set()
        self.refused = ""

    @property
    def registered(self) -> bool:
        """Return whether kubelet has registered it, as far as it lets anybody know."""
        return self._notified and (bool(self._streams) or not self._streamed)

    def tell(self) -> None:
        """Send health to kubelet at once."""
        for news in self._streams:
            news.set()

    async def attend(self) -> None:
        """Make each socket that is missing; kubelet registers a new one by itself.

        Raises:
            GpushimError: one cannot be made.
        """
        if not _is_bound(self._served):
            self._served = await self._bind(self._endpoint, self._calls(), self._served)
            self._notified = False
            if self._found:  # kubelet connects anew to what it finds anew
                self._found.leave()
        if not _is_bound(self._found):
            self._notified = False
            self._found = await self._bind(self._path, [self._registration()], self._found)
            self._changed()

    async def _bind(self, path: str, handlers: Sequence[Any], old: Listener | None) -> Listener:
        folder = path.rpartition("/")[0]
        try:
            os.makedirs(folder, 0o750, exist_ok=True)
        except OSError as error:
            sentence = f"{folder} cannot be made: {error.strerror}; is kubelet's directory another (kubelet-dir)?"
            raise GpushimError(sentence, FAILED) from None
        fresh = Listener(path, idle=False, streams=STREAMS)
        await fresh.bind(*handlers)
        if old:
            logger.warning("%s was gone, and is made again", path)
            await old.stop()
        return fresh

    async def stop(self) -> None:
        """Stop serving: kubelet forgets the driver, and goes on by another instance if there is one."""
        for listener in (self._found, self._served):
            if listener:
                await listener.stop()

    def _registration(self) -> grpc.GenericRpcHandler:
        async def info(_: Any, context: Any) -> dict[str, Any]:
            return {"type": DRIVER, "name": self._name, "endpoint": self._endpoint, "versions": [*VERSIONS]}

        async def notified(status: dict[str, Any], context: Any) -> dict[str, Any]:
            self._notified, self._streamed = status["registered"], bool(self._streams)
            self.refused = "" if self._notified else visible(status["error"][:REASON])
            if self._notified:
                logger.info("kubelet has registered the DRA driver %s", self._name)
            else:
                logger.error("kubelet does not register the DRA driver %s: %s", self._name, self.refused)
            self._changed()
            return {}

        rows = {
            "GetInfo": _unary(info, "Empty", "PluginInfo"),
            "NotifyRegistrationStatus": _unary(notified, "RegistrationStatus", "Empty"),
        }
        return grpc.method_handlers_generic_handler(REGISTRATION, rows)

    def _calls(self) -> list[grpc.GenericRpcHandler]:
        async def prepare(request: dict[str, Any], context: Any) -> dict[str, Any]:
            results = await self._prepare(await _check_claims(request, context))
            answers = {
                uid: {"error": result} if isinstance(result, str) else {"devices": result}
                for uid, result in results.items()
            }
            return {"claims": [{"key": uid, "value": answer} for uid, answer in answers.items()]}

        async def unprepare(request: dict[str, Any], context: Any) -> dict[str, Any]:
            claims = await _check_claims(request, context)
            await self._unprepare(claims)
            return {"claims": [{"key": claim["uid"], "value": {}} for claim in claims]}

        rows = {
            "NodePrepareResources": _unary(prepare, "Claims", "PreparedClaims"),
            "NodeUnprepareResources": _unary(unprepare, "Claims", "UnpreparedClaims"),
        }
        watch = grpc.unary_stream_rpc_method_handler(
            partial(Driver._watch, self),  # not bound: in that, Python 3.9 and so grpc see nothing asynchronous
            partial(protobuf.decode, MESSAGES, "Empty"),
            partial(protobuf.encode, MESSAGES, "Devices"),
        )
        health = grpc.method_handlers_generic_handler(HEALTH, {"NodeWatchResources": watch})
        return [*(grpc.method_handlers_generic_handler(name, rows) for name in PREPARING), health]

    async def _watch(self, _: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        """Serve NodeWatchResources: all devices at once, after a change, and every REPEAT seconds."""
        news = asyncio.Event()
        self._streams.add(news)
        self._streamed = True
        try:
            while True:
                news.clear()
                yield {"devices": self._health()}
                await until(news, REPEAT)
        finally:
            self._streams.discard(news)
            self._changed()


def _is_bound(listener: Listener | None) -> bool:
    return listener is not None and listener.inode is not None and identity(listener.path) == listener.inode


async def _check_claims(request: dict[str, Any], context: Any) -> list[dict[str, str]]:
    claims: list[dict[str, str]] = request["claims"]
    if len(claims) > CLAIMS:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {CLAIMS} claims are asked for at a time")
    return claims
