"""kubelet's device plugin API, version v1beta1, and its pod-resources API, version v1: names and field numbers.

Source: https://github.com/kubernetes/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto and
pkg/apis/podresources/v1/api.proto. Out of scope: what the messages mean to us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuplugin import protobuf
from gpushim.errors import FAILED, GpushimError

VERSION = "v1beta1"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
REGISTER = "/v1beta1.Registration/Register"
POD_RESOURCES = "/v1.PodResourcesLister/"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
KUBELET_SOCKET = "kubelet.sock"
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
    "ContainerResources": {1: ("name", "string", False), 2: ("devices", "ContainerDevices", True)},
    "PodResources": {
        1: ("name", "string", False),
        2: ("namespace", "string", False),
        3: ("containers", "ContainerResources", True),
    },
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources", True)},
    "AllocatableResourcesResponse": {1: ("devices", "ContainerDevices", True)},
}


def writer(name: str) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that writes messages of this name, as grpc calls it."""
    return partial(protobuf.encode, MESSAGES, name)


def reader(name: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads messages of this name, as grpc calls it."""
    return partial(protobuf.decode, MESSAGES, name)


def written(resource: str, devices: Sequence[Mapping[str, Any]]) -> bytes:
    """Write the list of a resource's devices.

    Args:
        resource: its name.
        devices: Device messages, all of them.

    Raises:
        GpushimError: it is more than kubelet reads.
    """
    data = protobuf.encode(MESSAGES, "ListAndWatchResponse", {"devices": devices})
    if len(data) > LIST_LIMIT:
        raise GpushimError(
            f"the list of {resource} has {len(devices)} devices and {len(data)} bytes, and kubelet reads "
            f"{LIST_LIMIT}; give out fewer replicas",
            FAILED,
        )
    return data
