"""GPU instances through NVML: which there are, and how a GPU gets others.

Out of scope: what they are to be (fit.py), and NVML's start (inventory/nvml.py).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from gpushim.mig.fit import Instance, Profile, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# nvml.h, nvmlGpuInstanceProfileInfo_v2_t, by the names of inventory.nvml.ATTRIBUTES.
MEMBERS = {
    "multiprocessors": "multiprocessorCount",
    "engines.copy": "copyEngineCount",
    "engines.decoder": "decoderCount",
    "engines.encoder": "encoderCount",
    "engines.jpeg": "jpegCount",
    "engines.ofa": "ofaCount",
}


def read(nvml: Any, handle: Any) -> State:
    """Return a GPU's state; NVML may tell no profiles or no placements of a GPU that is not in MIG mode."""
    current, pending = nvml.nvmlDeviceGetMigMode(handle)
    profiles = {profile.name: profile for profile in _profiles(nvml, handle)}
    instances = {}
    for profile in profiles.values() if current else ():
        for gi in _list(nvml.nvmlDeviceGetGpuInstances, nvml.c_nvmlGpuInstance_t, handle, profile):
            info = nvml.nvmlGpuInstanceGetInfo(gi)
            slices = (slices for slices, _ in _computes(nvml, gi))
            placement = int(info.placement.start), int(info.placement.size)
            instances[int(info.id)] = Instance(profile.name, placement, tuple(sorted(slices, reverse=True)))
    return State(bool(current), current != pending, instances, profiles)


def change(nvml: Any, handle: Any, instances: Collection[Instance]) -> None:
    """Give a GPU in MIG mode exactly these instances; those that it has already stay untouched.

    What a killed process has left half-made is not among them, and so is made anew.
    """
    state = read(nvml, handle)
    for number, instance in state.instances.items():
        if instance not in instances:
            remove(nvml, handle, number)
    for instance in instances:
        if instance not in state.instances.values():
            make(nvml, handle, state.profiles[instance.profile], instance)


def remove(nvml: Any, handle: Any, number: int) -> None:
    """Remove a GPU instance, and its compute instances before it."""
    gi = nvml.nvmlDeviceGetGpuInstanceById(handle, number)
    for _, compute in _computes(nvml, gi):
        nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(gi)


def make(nvml: Any, handle: Any, profile: Profile, instance: Instance) -> None:
    """Make a GPU instance, and its compute instances."""
    placement = nvml.c_nvmlGpuInstancePlacement_t(*instance.placement)
    gi = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(placement))
    ids = {computes.slices: computes.id for computes in reversed([*_compute_profiles(nvml, gi)])}
    for slices in instance.computes:
        nvml.nvmlGpuInstanceCreateComputeInstance(gi, ids[slices])


def _profiles(nvml: Any, handle: Any) -> Iterator[Profile]:
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            name = info.name.rpartition("MIG ")[2]
            placements = tuple(_placements(nvml, handle, info.id))
            counts, memory = (int(info.sliceCount), int(info.instanceCount)), int(info.memorySizeMB)
            counted = {key: int(getattr(info, member)) for key, member in MEMBERS.items()}
            yield Profile(int(info.id), name, *counts, placements, memory, counted)


def _placements(nvml: Any, handle: Any, profile: int) -> Iterator[tuple[int, int]]:
    """List a profile's placements, whether they are free or not."""
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, ctypes.byref(count))
        rows = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, rows, ctypes.byref(count))
        yield from [(int(row.start), int(row.size)) for row in rows[: count.value]]


def _computes(nvml: Any, gi: Any) -> Iterator[tuple[int, Any]]:
    """List the compute instances of a GPU instance, each with its slices."""
    for profile in _compute_profiles(nvml, gi):
        for compute in _list(nvml.nvmlGpuInstanceGetComputeInstances, nvml.c_nvmlComputeInstance_t, gi, profile):
            yield profile.slices, compute


def _compute_profiles(nvml: Any, gi: Any) -> Iterator[Profile]:
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gi, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1
            )
            yield Profile(int(info.id), "", int(info.sliceCount), int(info.instanceCount), ())


def _list(call: Any, kind: Any, parent: Any, profile: Profile) -> list[Any]:
    """Return the handles of the instances of a profile that a GPU or GPU instance has."""
    count, handles = ctypes.c_uint(), (kind * profile.most)()
    call(parent, profile.id, handles, ctypes.byref(count))
    return list(handles[: count.value])
