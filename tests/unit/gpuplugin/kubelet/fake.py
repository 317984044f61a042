"""A kubelet's side of device plugins, as far as plugins can see it.

That of 1.36 has one client per resource, the one that registered last, or none after one that failed; dials within
Register; closes the newest connection of a resource when any list of that resource ends; removes all sockets when it
starts. An old one answers Register before it dials, and closes the older connection of a resource itself. A new one,
1.37, has a client by each path: it refuses a path that it has, whose end it does not notice from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import grpc
import grpc.aio

from gpuplugin.kubelet.v1beta1 import DEVICE_PLUGIN, POD_RESOURCES, REGISTER, reader, writer

KINDS = ("old", "1.36", "1.37")
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


@dataclass
class Client:
    """A plugin's connection."""

    resource: str
    endpoint: str
    channel: grpc.aio.Channel
    options: dict[str, Any] = field(default_factory=dict)
    stream: Any = None  # of ListAndWatch

    async def close(self) -> None:
        """Close the connection; before grpcio 1.81 a channel does not always end its streams."""
        if self.stream:
            self.stream.cancel()
        await self.channel.close()

    async def call(self, method: str, request: dict[str, Any], names: tuple[str, str]) -> dict[str, Any]:
        """Call a method of the plugin's."""
        call = self.channel.unary_unary(f"/{DEVICE_PLUGIN}/{method}", writer(names[0]), reader(names[1]))
        answer: dict[str, Any] = await call(request, timeout=5)
        return answer


@dataclass
class Kubelet:
    """A kubelet in this process, with its directory of device plugins."""

    folder: Path  # of device plugins
    kind: str = "1.36"  # of KINDS
    refuses: str = ""
    clients: dict[str, Client] = field(default_factory=dict)
    connected: dict[str, dict[str, Client]] = field(default_factory=dict)  # resource: by path, of a new one
    watched: list[Client] = field(default_factory=list)  # whose end it notices, of a new one
    lists: dict[str, dict[str, str]] = field(default_factory=dict)  # resource: health by id
    registered: list[tuple[float, str]] = field(default_factory=list)
    held: dict[str, list[str]] = field(default_factory=dict)  # resource: ids that a pod has
    claimed: list[dict[str, Any]] = field(default_factory=list)  # DynamicResource messages of that pod
    reading: list[str] = field(default_factory=list)  # resources, one for each list that it reads
    ended: int = 0  # of those
    asked: int = 0  # what it would give out
    slow: float = 0  # seconds between an answer to Allocate and what it makes of it
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: Any = None

    @property
    def old(self) -> bool:
        """Whether it is an old one."""
        return self.kind == "old"

    @property
    def by_path(self) -> bool:
        """Whether it is a new one."""
        return self.kind == "1.37"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "kubelet.sock"

    async def start(self) -> None:
        """Remove all sockets, and listen."""
        for path in self.folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self._server = grpc.aio.server()
        register = grpc.unary_unary_rpc_method_handler(self._register, reader("RegisterRequest"), writer("Empty"))
        service, _, name = REGISTER[1:].partition("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: register}),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        pods = self.folder.parent / "pod-resources"
        pods.mkdir(exist_ok=True)
        self._server.add_generic_rpc_handlers((self._pod_resources(),))
        self._server.add_insecure_port(f"unix:{pods}/kubelet.sock")
        await self._server.start()

    def _pod_resources(self) -> grpc.GenericRpcHandler:
        async def allocatable(request: Any, context: Any) -> dict[str, Any]:
            self.asked += 1
            return {"devices": [{"resource_name": name, "device_ids": [*ids]} for name, ids in self.well().items()]}

        async def held(request: Any, context: Any) -> dict[str, Any]:
            devices = [{"resource_name": name, "device_ids": ids} for name, ids in self.held.items()]
            box = {"name": "main", "devices": devices, "dynamic_resources": self.claimed}
            return {"pod_resources": [{"name": "pod", "containers": [box]}]}

        serve = grpc.unary_unary_rpc_method_handler
        rows = {
            "GetAllocatableResources": (allocatable, "AllocatableResourcesResponse"),
            "List": (held, "ListPodResourcesResponse"),
        }
        methods = {name: serve(work, reader("Empty"), writer(answer)) for name, (work, answer) in rows.items()}
        return grpc.method_handlers_generic_handler(POD_RESOURCES.strip("/"), methods)

    def well(self) -> dict[str, list[str]]:
        """What it would give out: by the last list, whoever sent it."""
        return {
            name: [one for one, health in listed.items() if health == "Healthy"]
            for name, listed in self.lists.items()
        }

    async def _register(self, request: dict[str, Any], context: Any) -> dict[str, Any]:
        if self.refuses:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuses)
        self.registered.append((time.monotonic(), request["resource_name"]))
        assert request["version"] == "v1beta1"
        if self.old:
            self._spawn(self._dial(request))
        else:
            await self._dial(request)
        return {}

    async def _dial(self, request: dict[str, Any]) -> None:
        channel = grpc.aio.insecure_channel(f"unix:{self.folder}/{request['endpoint']}", options=OPTIONS)
        client = Client(request["resource_name"], request["endpoint"], channel)
        try:
            client.options = await client.call("GetDevicePluginOptions", {}, ("Empty", "DevicePluginOptions"))
        except grpc.aio.AioRpcError:
            if not (self.old or self.by_path):
                self.clients.pop(client.resource, None)  # without looking whose it is
            await channel.close()
            raise
        if self.by_path:
            await self._connect(client)
        before = self.clients.get(client.resource)
        self.clients[client.resource] = client
        if self.old and before:
            await before.close()
        self._spawn(self._watch(client))

    async def _connect(self, client: Client) -> None:
        by_path = self.connected.setdefault(client.resource, {})
        before = by_path.setdefault(client.endpoint, client)
        if before is not client:
            self.watched = [one for one in self.watched if one is not before]  # and so it stays connected
            await client.close()
            raise RuntimeError(f"device plugin already connected: {client.endpoint}")
        self.watched.append(client)

    async def _watch(self, client: Client) -> None:
        method = f"/{DEVICE_PLUGIN}/ListAndWatch"
        call = client.channel.unary_stream(method, writer("Empty"), reader("ListAndWatchResponse"))
        self.reading.append(client.resource)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError, grpc.aio.UsageError):
            client.stream = call({})
            async for answer in client.stream:
                self.lists[client.resource] = {one["ID"]: one["health"] for one in answer["devices"]}
        self.reading.remove(client.resource)
        self.ended += 1
        if self.by_path:
            await self._disconnect(client)
            return
        newest = self.clients.get(client.resource)
        if newest and (not self.old or newest is client):
            self.clients.pop(client.resource)
            self.lists[client.resource] = dict.fromkeys(self.lists.get(client.resource, ()), "Unhealthy")
            await newest.close()

    async def _disconnect(self, client: Client) -> None:
        if client in self.watched:
            self.watched.remove(client)
            by_path = self.connected[client.resource]
            del by_path[client.endpoint]
            if by_path:
                self.clients[client.resource] = next(iter(by_path.values()))
            else:
                self.clients.pop(client.resource)
                self.lists[client.resource] = dict.fromkeys(self.lists.get(client.resource, ()), "Unhealthy")
            await client.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, clean: bool = True) -> None:
        """End; one that is killed leaves its socket behind."""
        aside = self.folder / "kept"
        if not clean:
            os.link(self.socket, aside)
        await self._server.stop(0)
        clients = [*self.clients.values(), *self.watched]
        self.clients, self.watched = {}, []
        self.connected.clear()
        await asyncio.gather(*(client.close() for client in clients))
        self.lists.clear()
        if clean:
            self.socket.unlink(missing_ok=True)
        else:
            os.replace(aside, self.socket)

    async def allocate(self, resource: str, *ids: str) -> dict[str, Any]:
        """Ask for devices; the answer of the one container. It crashes if they have left the list meanwhile."""
        request = {"container_requests": [{"devices_ids": list(ids)}]}
        answer = await self.clients[resource].call("Allocate", request, ("AllocateRequest", "AllocateResponse"))
        await asyncio.sleep(self.slow)
        assert set(ids) <= set(self.lists[resource]), "kubelet has crashed: it allocates what is no more"
        (one,) = answer["container_responses"]
        found: dict[str, Any] = one
        return found


async def until(condition: Callable[[], object], seconds: float = 8) -> float:
    """Wait for a condition; return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come true in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - began
