"""Ask NVML what a host or a container has, through the real nvidia-ml-py, in a process of its own.

Run as a program it prints what it sees as one line of JSON: `client.py [LIBRARY [CHROOT [UID]]]`. It needs nothing
beside it but pynvml.py, so that it can be put into a container. Out of scope: what an inventory does not ask.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pynvml as nvml

if TYPE_CHECKING:
    from fakehost.host import Host


def ask(host: Host, *, container: bool = False, uid: int = 0, timeout: float = 30) -> Any:
    """Return what a fresh client process sees: `look`'s answer.

    Args:
        host: whose NVML to load.
        container: look from inside a chroot, where nodes are in /dev and the host's directory is not there.
        uid: user to be.
        timeout: seconds before the client is killed.

    Raises:
        subprocess.TimeoutExpired: NVML did not answer in time.
        subprocess.CalledProcessError: the client broke.
    """
    library = f"/{host.libdir}/libnvidia-ml.so.1" if container else host.nvml
    command = [sys.executable, os.path.abspath(__file__), library, host.root if container else "/", str(uid)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True)
    return json.loads(done.stdout)


def look() -> dict[str, Any]:
    """Return versions and GPUs, or NVML's error and its text."""
    try:
        nvml.nvmlInit()
        seen = {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "nvml": nvml.nvmlSystemGetNVMLVersion(),
            "cuda": nvml.nvmlSystemGetCudaDriverVersion_v2(),
            "gpus": [_gpu(index) for index in range(nvml.nvmlDeviceGetCount())],
        }
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return {"error": error.value, "text": str(error)}
    return seen


def _gpu(index: int) -> dict[str, Any]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"error": error.value}
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    others = [nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.nvmlDeviceGetHandleByPciBusId(pci.busId)]
    return {
        "index": nvml.nvmlDeviceGetIndex(handle),
        "index_by_uuid_and_bus": [nvml.nvmlDeviceGetIndex(other) for other in others],
        "minor": nvml.nvmlDeviceGetMinorNumber(handle),
        "uuid": uuid,
        "name": nvml.nvmlDeviceGetName(handle),
        "bus": pci.busId,
        "legacy_bus": pci.busIdLegacy,
        "device": pci.pciDeviceId,
        "brand": nvml.nvmlDeviceGetBrand(handle),
        "arch": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "memory": [nvml.nvmlDeviceGetMemoryInfo(handle, version).total for version in (None, nvml.nvmlMemory_v2)],
        "mig_mode": _mig_mode(handle),
        "migs": list(_migs(handle)),
    }


def _mig_mode(handle: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return None


def _migs(handle: Any) -> Iterator[dict[str, Any]]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            return
        attributes = nvml.nvmlDeviceGetAttributes(device)
        uuid = nvml.nvmlDeviceGetUUID(device)
        yield {
            "index": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)),
            "name": nvml.nvmlDeviceGetName(device),
            "uuid": uuid,
            "gi": nvml.nvmlDeviceGetGpuInstanceId(device),
            "ci": nvml.nvmlDeviceGetComputeInstanceId(device),
            "is_mig": nvml.nvmlDeviceIsMigDeviceHandle(device).value,
            "parent": nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)),
            "slices": attributes.gpuInstanceSliceCount,
            "memory": attributes.memorySizeMB,
        }


def main() -> None:
    """Look from where the arguments say, and print it."""
    library, chroot, uid = [*sys.argv[1:], *("libnvidia-ml.so.1", "/", "0")[len(sys.argv) - 1 :]]
    if chroot != "/":
        os.chroot(chroot)
        os.chdir("/")
    if uid != "0":
        os.setuid(int(uid))
    # nvidia-ml-py loads the library by its SONAME, and gets the one that is loaded already.
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    print(json.dumps(look()))


if __name__ == "__main__":
    main()
