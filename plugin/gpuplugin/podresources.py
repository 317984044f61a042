"""What kubelet says that it has, and who has what of it: its pod-resources API, version v1.

Asked now and then, never while a container waits, and read in a thread, for tens of thousands of replicas take a
second. Out of scope: what follows from the answers (daemon.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio

from gpuplugin.endpoint import CHANNEL
from gpuplugin.protobuf import WireError
from gpuplugin.v1beta1 import POD_RESOURCES, reader, writer

if TYPE_CHECKING:
    from collections.abc import Collection

    Devices = dict[str, set[str]]  # ids by resource
    Holder = dict[str, Any]  # "namespace", "pod", "container", "resource", "devices" (ids)

DEADLINE = 5.0  # seconds
LIMIT = 1 << 24  # bytes of an answer, which has each device at most twice


async def allocatable(kubelet_dir: str) -> Devices | None:
    """Ask which devices kubelet would give out; None if it does not say."""
    answer = await _ask(kubelet_dir, "GetAllocatableResources", "AllocatableResourcesResponse")
    if answer is None:
        return None
    found: Devices = {}
    for one in answer["devices"]:
        found.setdefault(one["resource_name"], set()).update(one["device_ids"])
    return found


async def holders(kubelet_dir: str, resources: Collection[str]) -> list[Holder] | None:
    """Ask which containers have devices of these resources; None if kubelet does not say."""
    answer = await _ask(kubelet_dir, "List", "ListPodResourcesResponse")
    return None if answer is None else await asyncio.to_thread(_holders, answer, frozenset(resources))


def _holders(answer: dict[str, Any], resources: frozenset[str]) -> list[Holder]:
    found: dict[tuple[str, str, str, str], list[str]] = {}  # kubelet lists devices of each NUMA node by themselves
    for pod in answer["pod_resources"]:
        for box in pod["containers"]:
            for one in box["devices"]:
                if one["resource_name"] in resources:
                    who = (pod["namespace"], pod["name"], box["name"], one["resource_name"])
                    found.setdefault(who, []).extend(one["device_ids"])
    keys = ("namespace", "pod", "container", "resource")
    return [{**dict(zip(keys, who)), "devices": ids} for who, ids in sorted(found.items())]


async def pods(kubelet_dir: str) -> dict[str, dict[str, str]] | None:
    """Ask which pod has which device: "pod NAMESPACE/NAME" by resource and id; None if kubelet does not say."""
    answer = await _ask(kubelet_dir, "List", "ListPodResourcesResponse")
    return None if answer is None else await asyncio.to_thread(_pods, answer)


def _pods(answer: dict[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for pod in answer["pod_resources"]:
        for one in (one for box in pod["containers"] for one in box["devices"]):
            who = f"pod {pod['namespace']}/{pod['name']}"
            found.setdefault(one["resource_name"], {}).update(dict.fromkeys(one["device_ids"], who))
    return found


async def _ask(kubelet_dir: str, method: str, name: str) -> dict[str, Any] | None:
    path = f"unix:{kubelet_dir}/pod-resources/kubelet.sock"
    options = (*CHANNEL, ("grpc.max_receive_message_length", LIMIT))
    async with grpc.aio.insecure_channel(path, options=options) as channel:
        try:
            data = await channel.unary_unary(POD_RESOURCES + method, writer("Empty"))({}, timeout=DEADLINE)
            answer: dict[str, Any] = await asyncio.to_thread(reader(name), data)
        except (grpc.aio.AioRpcError, WireError):  # none there, of an old kubelet, not answering: nothing follows
            return None
    return answer
