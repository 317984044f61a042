"""Answer questions about NVML that come on stdin, an expression a line, each with a line of JSON (see session.py).

`questions.py LIBRARY CHROOT UID`: an expression may use the functions below, `gpus` (NVML's handles), and the real
nvidia-ml-py as `n`. GPUs are told by NVML's index, GPU and compute instances by their ids.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import pynvml as n

gpus: list[Any] = []
events: list[Any] = []


def wait(ms: int) -> list[Any]:
    """Wait for the next event; its GPU, type, data and instances."""
    data = n.nvmlEventSetWait_v2(events[0], ms)
    uuid = n.nvmlDeviceGetUUID(data.device)
    return [uuid, data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId]


def register(gpu: int) -> None:
    """Ask for a GPU's events."""
    n.nvmlDeviceRegisterEvents(gpus[gpu], n.nvmlDeviceGetSupportedEventTypes(gpus[gpu]), events[0])


def field(gpu: int) -> int:
    """Return the recovery action, or the error of asking for it below zero."""
    (value,) = n.nvmlDeviceGetFieldValues(gpus[gpu], [230])
    return int(value.value.uiVal) if value.nvmlReturn == 0 else -int(value.nvmlReturn)


def migs(gpu: int) -> list[str]:
    """Return the UUIDs of a GPU's MIG devices."""
    uuids = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpus[gpu])):
        try:
            uuids.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[gpu], index)))
        except n.NVMLError_NotFound:
            break
    return uuids


def mode(gpu: int, new: int | None = None) -> Any:
    """Return current and pending MIG mode; or set it, and return what became of that."""
    return n.nvmlDeviceGetMigMode(gpus[gpu]) if new is None else n.nvmlDeviceSetMigMode(gpus[gpu], new)


def profiles(gpu: int) -> list[list[Any]]:
    """Return id, name, count, slices, multiprocessors and MiB of each profile for GPU instances."""
    rows = []
    for kind in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = n.nvmlDeviceGetGpuInstanceProfileInfo(gpus[gpu], kind)
        except n.NVMLError_NotSupported:
            continue
        rows.append([info.id, info.name, info.instanceCount, info.sliceCount, info.multiprocessorCount])
        rows[-1].append(info.memorySizeMB)
    return rows


def placements(gpu: int, profile: int) -> list[list[int]]:
    """Return first slice and size of each place where a GPU instance of a profile can be."""
    count, array = ctypes.c_uint(), (n.c_nvmlGpuInstancePlacement_t * 8)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpus[gpu], profile, array, ctypes.byref(count))
    return [[place.start, place.size] for place in array[: count.value]]


def left(gpu: int, profile: int) -> int:
    """Return how many GPU instances of a profile there is room for."""
    return int(n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpus[gpu], profile))


def made(gpu: int, profile: int) -> list[list[int]]:
    """Return id, first slice and size of each GPU instance of a profile."""
    count, array = ctypes.c_uint(), (n.c_nvmlGpuInstance_t * 15)()
    n.nvmlDeviceGetGpuInstances(gpus[gpu], profile, array, ctypes.byref(count))
    infos = [n.nvmlGpuInstanceGetInfo(handle) for handle in array[: count.value]]
    return [[info.id, info.placement.start, info.placement.size] for info in infos]


def make(gpu: int, profile: int, start: int | None = None, size: int = 0) -> int:
    """Make a GPU instance, where NVML likes or at a place; its id."""
    if start is None:
        handle = n.nvmlDeviceCreateGpuInstance(gpus[gpu], profile)
    else:
        place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size))
        handle = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpus[gpu], profile, place)
    return int(n.nvmlGpuInstanceGetInfo(handle).id)


def instance(gpu: int, gi: int) -> Any:
    """Return the handle of a GPU instance."""
    return n.nvmlDeviceGetGpuInstanceById(gpus[gpu], gi)


def computes(gpu: int, gi: int) -> list[list[Any]]:
    """Return id, name, count and multiprocessors of each profile for compute instances of a GPU instance."""
    rows = []
    for kind in range(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance(gpu, gi), kind, 0)
        except n.NVMLError_NotSupported:
            continue
        rows.append([info.id, info.name, info.instanceCount, info.multiprocessorCount])
    return rows


def compute(gpu: int, gi: int, profile: int) -> int:
    """Make a compute instance; its id."""
    handle = n.nvmlGpuInstanceCreateComputeInstance(instance(gpu, gi), profile)
    return int(n.nvmlComputeInstanceGetInfo(handle).id)


def remove(gpu: int, gi: int, ci: int | None = None) -> int:
    """Remove a compute instance, or a GPU instance."""
    if ci is None:
        return int(n.nvmlGpuInstanceDestroy(instance(gpu, gi)))
    return int(n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance(gpu, gi), ci)))


def main() -> None:
    """Open NVML from where the arguments say, and answer."""
    library, chroot, uid = sys.argv[1:]
    os.chroot(chroot)
    os.chdir("/")
    os.setuid(int(uid))
    # nvidia-ml-py loads the library by its SONAME, and gets the one that is loaded already.
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    n.nvmlInit()
    gpus.extend(n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount()))
    events.append(n.nvmlEventSetCreate())
    for line in sys.stdin:
        try:
            answer = eval(line)
        except n.NVMLError as error:
            answer = {"error": error.value}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
