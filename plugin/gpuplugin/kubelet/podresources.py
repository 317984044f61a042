"""kubelet's pod-resources API, version v1: which devices it has, and which container has which of them.

Asked now and then, never while a container waits, and read in a thread, for tens of thousands of replicas take a
second.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc.aio

from gpuplugin.kubelet import sockets
from gpuplugin.kubelet.endpoint import CHANNEL
from gpuplugin.kubelet.v1beta1 import POD_RESOURCES, reader, writer
from gpushim.containers.kubelet import PODS_SOCKET, Claim, is_static
from gpushim.containers.protobuf import WireError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    Devices = dict[str, set[str]]  # ids by resource
    Holder = dict[str, Any]  # "namespace", "pod", "container", "resource", "devices" (ids)

DEADLINE = 5.0  # seconds
SETTLED = 10.0  # seconds in which a kubelet that has the API server's pods may not list all of them yet
LIMIT = 1 << 24  # bytes of an answer, which has each device at most twice


async def allocatable(kubelet_dir: str) -> Devices | None:
    """Return the devices that kubelet would give out; None if it does not say."""
    answer = await _ask(kubelet_dir, "GetAllocatableResources", "AllocatableResourcesResponse")
    if answer is None:
        return None
    devices: Devices = {}
    for row in answer["devices"]:
        devices.setdefault(row["resource_name"], set()).update(row["device_ids"])
    return devices


class Listed(NamedTuple):
    """kubelet's list of all containers; it lists no pod twice, and none that has ended.

    Attributes:
        devices: of device plugins, of all resources.
        claims: devices of all DRA drivers; gpushim.containers.kubelet.which says which GPU each is.
        pods: all of them, as `held` names them, also those that have nothing.
    """

    devices: list[Holder]
    claims: list[Claim]
    pods: Collection[str] = ()

    def held(self) -> dict[str, dict[str, str]]:
        """Return the holder of each device of plugins: "pod NAMESPACE/NAME" by resource and id."""
        holders: dict[str, dict[str, str]] = {}
        for row in self.devices:
            pod = f"pod {row['namespace']}/{row['pod']}"
            holders.setdefault(row["resource"], {}).update(dict.fromkeys(row["devices"], pod))
        return holders

    def served(self, node: str) -> bool:
        """Return whether a pod of the API server's is surely among them.

        Args:
            node: this node's name; "" if it is not known, but that it ends the names of all static pods.
        """
        if not node:
            return bool(self.pods) and "-" not in os.path.commonprefix([pod[::-1] for pod in self.pods])  # noqa: RUF071
        return not all(is_static(pod, node) for pod in self.pods)


class Complete:
    """Whether kubelet lists all pods: it lists static ones alone until it has those of the API server.

    Args:
        node: this node's name, or "".
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: float | None = None  # when it did not last, or was asked first

    def says(self, pods: Listed, now: float, young: bool) -> bool:
        """Return whether no pod of the API server's is missing; one may be for SETTLED seconds after there was none.

        Args:
            pods: what kubelet has listed just now.
            now: seconds of a clock that never goes back.
            young: kubelet has started just now.
        """
        if self._since is None or young or not pods.served(self._node):
            self._since = now
        return now - self._since >= SETTLED


async def listed(kubelet_dir: str) -> Listed | None:
    """Return which containers have what; None if kubelet does not say."""
    answer = await _ask(kubelet_dir, "List", "ListPodResourcesResponse")
    return None if answer is None else await asyncio.to_thread(_parse_list, answer)


def _parse_list(answer: dict[str, Any]) -> Listed:
    devices: dict[tuple[str, str, str, str], list[str]] = {}  # kubelet lists devices of each NUMA node by themselves
    claims = []
    for pod in answer["pod_resources"]:
        for container in pod["containers"]:
            for row in container["devices"]:
                key = (pod["namespace"], pod["name"], container["name"], row["resource_name"])
                devices.setdefault(key, []).extend(row["device_ids"])
            claims += [*_parse_claims(container["dynamic_resources"], pod["name"], container["name"])]
    keys = ("namespace", "pod", "container", "resource")
    pods = frozenset(f"pod {pod['namespace']}/{pod['name']}" for pod in answer["pod_resources"])
    rows = [{**dict(zip(keys, key)), "devices": ids} for key, ids in sorted(devices.items())]
    return Listed(rows, sorted(claims), pods)


def _parse_claims(resources: list[dict[str, Any]], pod: str, container: str) -> Iterator[Claim]:
    for resource in resources:
        for row in resource["claim_resources"]:
            cdi = tuple(device["name"] for device in row["cdi_devices"])
            names = (row["driver_name"], row["pool_name"], row["device_name"])
            yield Claim(resource["claim_namespace"], resource["claim_name"], *names, cdi, pod, container)


async def _ask(kubelet_dir: str, method: str, name: str) -> dict[str, Any] | None:
    path = f"{kubelet_dir}/{PODS_SOCKET}"
    if not sockets.is_listening(path):  # costs less than a question to nobody
        return None
    options = (*CHANNEL, ("grpc.max_receive_message_length", LIMIT))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            data = await channel.unary_unary(POD_RESOURCES + method, writer("Empty"))({}, timeout=DEADLINE)
            answer: dict[str, Any] = await asyncio.to_thread(reader(name), data)
        except (grpc.aio.AioRpcError, WireError):  # of an old kubelet, not answering: nothing follows
            return None
    return answer
