"""kubelet's device plugin API, version v1beta1, and its pod-resources API, version v1: names and field numbers.

Also what plugins tell of themselves. Source: https://github.com/kubernetes/kubelet, api.proto in
pkg/apis/deviceplugin/v1beta1, pkg/apis/podresources/v1 and pkg/apis/pluginregistration/v1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any

from gpushim.containers import protobuf
from gpushim.ground.errors import FAILED, GpushimError

VERSION = "v1beta1"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
REGISTER = "/v1beta1.Registration/Register"
POD_RESOURCES = "/v1.PodResourcesLister/"
GET_INFO = "/pluginregistration.Registration/GetInfo"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
LIST_LIMIT = 4 << 20  # bytes of one list that kubelet takes (grpc-go's default)

_STRINGS = ("string", True)
MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Empty": {},
    "DevicePluginOptions": {
        1: ("pre_start_required", "bool", False),
        2: ("get_preferred_allocation_available", "bool", False),
    },
    "RegisterRequest": {
        1: ("version", "string", False),
        2: ("endpoint", "string", False),
        3: ("resource_name", "string", False),
        4: ("options", "DevicePluginOptions", False),
    },
    "NUMANode": {1: ("ID", "int64", False)},
    "TopologyInfo": {1: ("nodes", "NUMANode", True)},
    "Device": {1: ("ID", "string", False), 2: ("health", "string", False), 3: ("topology", "TopologyInfo", False)},
    "ListAndWatchResponse": {1: ("devices", "Device", True)},
    "ContainerPreferredAllocationRequest": {
        1: ("available_deviceIDs", *_STRINGS),
        2: ("must_include_deviceIDs", *_STRINGS),
        3: ("allocation_size", "int32", False),
    },
    "PreferredAllocationRequest": {1: ("container_requests", "ContainerPreferredAllocationRequest", True)},
    "ContainerPreferredAllocationResponse": {1: ("deviceIDs", *_STRINGS)},
    "PreferredAllocationResponse": {1: ("container_responses", "ContainerPreferredAllocationResponse", True)},
    "ContainerAllocateRequest": {1: ("devices_ids", *_STRINGS)},
    "AllocateRequest": {1: ("container_requests", "ContainerAllocateRequest", True)},
    "Mount": {
        1: ("container_path", "string", False),
        2: ("host_path", "string", False),
        3: ("read_only", "bool", False),
    },
    "DeviceSpec": {
        1: ("container_path", "string", False),
        2: ("host_path", "string", False),
        3: ("permissions", "string", False),
    },
    "CDIDevice": {1: ("name", "string", False)},
    "ContainerAllocateResponse": {
        1: ("envs", "map", False),
        2: ("mounts", "Mount", True),
        3: ("devices", "DeviceSpec", True),
        4: ("annotations", "map", False),
        5: ("cdi_devices", "CDIDevice", True),
    },
    "AllocateResponse": {1: ("container_responses", "ContainerAllocateResponse", True)},
    "PreStartContainerRequest": {1: ("devices_ids", *_STRINGS)},
    # Of pod-resources, what tells who has which device.
    "ContainerDevices": {1: ("resource_name", "string", False), 2: ("device_ids", *_STRINGS)},
    "ContainerResources": {
        1: ("name", "string", False),
        2: ("devices", "ContainerDevices", True),
        5: ("dynamic_resources", "DynamicResource", True),
    },
    "DynamicResource": {
        2: ("claim_name", "string", False),
        3: ("claim_namespace", "string", False),
        4: ("claim_resources", "ClaimResource", True),
    },
    "ClaimResource": {
        1: ("cdi_devices", "CDIDevice", True),
        2: ("driver_name", "string", False),
        3: ("pool_name", "string", False),
        4: ("device_name", "string", False),
    },
    "PodResources": {
        1: ("name", "string", False),
        2: ("namespace", "string", False),
        3: ("containers", "ContainerResources", True),
    },
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources", True)},
    "PluginInfo": {
        1: ("type", "string", False),
        2: ("name", "string", False),
        3: ("endpoint", "string", False),
        4: ("supported_versions", *_STRINGS),
    },
    "AllocatableResourcesResponse": {1: ("devices", "ContainerDevices", True)},
}


def writer(name: str) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that writes messages of this name, as grpc calls it."""
    return partial(protobuf.encode, MESSAGES, name)


def reader(name: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads messages of this name, as grpc calls it."""
    return partial(protobuf.decode, MESSAGES, name)


def write_device(device: str, healthy: bool, numa: int) -> bytes:
    """Write a Device message as part of a list; without topology for a `numa` node below 0."""
    return protobuf.lengthy(1, protobuf.lengthy(1, device.encode()) + _write_state(healthy, numa))


@lru_cache(maxsize=256)
def _write_state(healthy: bool, numa: int) -> bytes:
    """Write all of a Device but its ID: it is the same for the thousands of one GPU."""
    topology = {"topology": {"nodes": [{"ID": numa}]}} if numa >= 0 else {}
    return protobuf.encode(MESSAGES, "Device", {"health": HEALTHY if healthy else UNHEALTHY, **topology})


def _part(device: Mapping[str, Any]) -> bytes:
    return protobuf.encode(MESSAGES, "ListAndWatchResponse", {"devices": [device]})


def check(resource: str, devices: Collection[tuple[str, int]]) -> None:
    """Raise GpushimError if the list of these (ID, NUMA node) may become more than kubelet reads, whatever their
    health.
    """
    kinds = Counter((len(name), numa) for name, numa in devices)
    size = sum(times * len(write_device("x" * length, False, numa)) for (length, numa), times in kinds.items())
    if size > LIST_LIMIT:
        raise _too_long(resource, len(devices), size)


def write_list(resource: str, devices: Collection[Mapping[str, Any] | bytes]) -> bytes:
    """Write the list of all devices of a resource: Device messages, or the parts that `write_device` wrote.

    Raises:
        GpushimError: it is more than kubelet reads.
    """
    data = b"".join(device if isinstance(device, bytes) else _part(device) for device in devices)
    if len(data) > LIST_LIMIT:
        raise _too_long(resource, len(devices), len(data))
    return data


def _too_long(resource: str, devices: int, size: int) -> GpushimError:
    return GpushimError(
        f"the list of {resource} has {devices} devices and {size} bytes, and kubelet reads {LIST_LIMIT}; give out "
        "fewer replicas",
        FAILED,
    )
