"""A session with NVML: the library of one driver root, initialised and shut down, and what its numbers mean.

Out of scope: what to do when NVML hangs (deadline.py), which GPUs there are (gpus.py, wsl.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# nvml.h, nvmlBrandType_t; NVIDIA_REQUIRE_* compares these names without regard to case.
BRANDS = (
    *("Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan"),
    *("NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming"),
    *("QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX"),
)
# nvml.h, nvmlDeviceAttributes_t: what it counts in a MIG instance, by the name in GPU feature discovery's labels.
ATTRIBUTES = {
    "multiprocessors": "multiprocessorCount",
    "slices.gi": "gpuInstanceSliceCount",
    "slices.ci": "computeInstanceSliceCount",
    "engines.copy": "sharedCopyEngineCount",
    "engines.decoder": "sharedDecoderCount",
    "engines.encoder": "sharedEncoderCount",
    "engines.jpeg": "sharedJpegCount",
    "engines.ofa": "sharedOfaCount",
}
FAILS = "NVML"  # begins a sentence about an NVML that is there and does not work


class UnusableError(Exception):
    """Why NVML cannot be asked.

    Args:
        sentence: what is wrong, without a full stop.
        mismatch: whether the kernel module is of another version than the library.
    """

    def __init__(self, sentence: str, mismatch: bool = False) -> None:
        super().__init__(sentence)
        self.mismatch = mismatch


def bindings() -> Any:
    """Import pynvml, which a host may lack: UnusableError."""
    try:
        import pynvml
    except ImportError as error:
        raise UnusableError(f"Python's nvidia-ml-py cannot be used ({error})") from None
    return pynvml


@contextlib.contextmanager
def session(library: str, waiting: Callable[[str], None]) -> Iterator[Any]:
    """Initialise NVML from a library's path on the host; yields pynvml.

    Raises:
        UnusableError: NVML cannot be initialised, or the body failed with an NVML error.
    """
    nvml = bindings()
    waiting("NVML to initialise")
    try:
        # pynvml loads libnvidia-ml.so.1 by its SONAME, and so gets this one, of this driver root and version.
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        nvml.nvmlInit()
    except (OSError, nvml.NVMLError) as error:
        value = getattr(error, "value", "")
        mismatch = value == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", None)
        raise UnusableError(f"{FAILS} cannot be used ({error})", mismatch) from None
    try:
        yield nvml
    except (nvml.NVMLError, UnicodeDecodeError) as error:
        raise UnusableError(f"{FAILS} failed ({error})") from None
    finally:
        with contextlib.suppress(nvml.NVMLError):  # a GPU is lost; nothing is left to do
            nvml.nvmlShutdown()


def cuda(nvml: Any) -> str:
    """Return the newest version of CUDA that the driver supports, as 12.2."""
    number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def arch(nvml: Any, handle: Any) -> str:
    """Return a GPU's compute capability, as 8.6."""
    return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))


def memory(nvml: Any, handle: Any) -> int:
    """Return the whole memory of a GPU or MIG instance in MiB; 0 for one that has none of its own, as a GB10."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return 0


def brand(nvml: Any, handle: Any) -> str:
    """Return the name of a GPU's brand; "Unknown" for one that came after BRANDS."""
    try:
        number = nvml.nvmlDeviceGetBrand(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        number = 0
    return BRANDS[number] if number < len(BRANDS) else BRANDS[0]


def is_vgpu(nvml: Any, handle: Any) -> bool:
    """Say whether a GPU is a virtual one, of a machine that is virtual itself."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return bool(nvml.nvmlDeviceGetVirtualizationMode(handle) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    return False


def fabric(nvml: Any, handle: Any) -> str:
    """Return "UUID.CLIQUE" of the cluster that NVLinks make of several hosts; "" if there is none, or not yet."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # old drivers and old bindings know nothing of it
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        cluster = bytes(info.clusterUuid)
        if info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == nvml.NVML_SUCCESS and any(cluster):
            return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}"
    return ""


def attributes(nvml: Any, handle: Any) -> dict[str, int]:
    """Return what NVML counts in a MIG instance, by the names of ATTRIBUTES; {} if it does not tell."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        found = nvml.nvmlDeviceGetAttributes_v2(handle)
        return {name: int(getattr(found, member)) for name, member in ATTRIBUTES.items()}
    return {}
