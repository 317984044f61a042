"""The program of the child that lists, makes and removes partitions by NVML, which may hang.

A partition that is there as it is to be is no error, nor is one that is not there any more: the process before may
have been killed at any step.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuplugin.dra.partitions import name_partition
from gpushim.inventory import nvml
from gpushim.mig import gpu_instances
from gpushim.mig.fit import Instance

if TYPE_CHECKING:
    from gpushim.mig.fit import Profile, State

LIST, CHECK, MAKE, REMOVE = "list", "check", "make", "remove"


def main(library: str, requests: str) -> None:
    """Carry out requests, and print for each {"error": why} or {"answer": ...}, a line of JSON.

    Args:
        library: NVML's.
        requests: JSON: for each what is to be done, the GPU's UUID, and the partition's name.
    """
    rows = json.loads(requests)
    try:
        with nvml.session(library, lambda step: None) as session:
            for request in rows:
                print(json.dumps(_carry_out(session, *request)), flush=True)
    except nvml.UnusableError as error:
        for _ in rows:
            print(json.dumps({"error": str(error)}))


def _carry_out(session: Any, action: str, gpu: str, name: str) -> dict[str, Any]:
    try:
        handle = session.nvmlDeviceGetHandleByUUID(gpu.encode())
        state = gpu_instances.read(session, handle)
        if action == LIST:
            return {"answer": [*state.profiles.values()]}
        profile, instance = _find(state, gpu.lower(), name)
        present = {
            number: other
            for number, other in state.instances.items()
            if (other.profile, other.placement) == (instance.profile, instance.placement)
        }
        if action == CHECK and present:
            return {"error": "somebody else has made it"}
        for number, other in present.items():
            if action == REMOVE or (action == MAKE and not other.computes):  # half-made
                gpu_instances.remove(session, handle, number)
        if action == MAKE and instance not in present.values():
            gpu_instances.make(session, handle, profile, instance)
    except (session.NVMLError, nvml.UnusableError) as error:
        if action == REMOVE and isinstance(error, (session.NVMLError_NotFound, nvml.UnusableError)):
            return {"answer": None}  # MIG mode is off, or the GPU was exchanged: nothing is left of it
        return {"error": f"NVML refuses: {error}"}
    except Exception as error:  # noqa: BLE001 - said to the parent, which alone hears it
        return {"error": f"{type(error).__name__}: {error}"}
    return {"answer": None}


def _find(state: State, gpu: str, name: str) -> tuple[Profile, Instance]:
    """Return what a partition is.

    Raises:
        UnusableError: the GPU has none of that name.
    """
    for profile in state.profiles.values():
        for placement in profile.placements:
            if name_partition(gpu, profile.name, placement[0]) == name:
                return profile, Instance(profile.name, placement, (profile.slices,))
    raise nvml.UnusableError(f"GPU {gpu} has no such placement of a MIG profile; is it in MIG mode?")
