"""A session with NVML, by the library of one driver root, and the meaning of its answers."""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpushim.inventory import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpushim.ground.model import Gpu

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
ADDRESSING = ("None", "HMM", "ATS")  # nvml.h, NVML_DEVICE_ADDRESSING_MODE_*
FABRIC_STATES = {1: "it has not begun", 2: "it is being made"}  # nvml.h, NVML_GPU_FABRIC_STATE_*; 0: there is none
FABRIC_COMPLETED = 3
NVLINKS = 36  # of a GPU at most (NVML_NVLINK_MAX_LINKS of nvml.h)
FURTHEST = 50  # NVML_TOPOLOGY_SYSTEM
FAILS = "NVML"  # begins a sentence about an NVML that is there and does not work


class UnusableError(Exception):
    """Why NVML cannot be asked; `mismatch` if the kernel module is of another version than the library."""

    def __init__(self, sentence: str, mismatch: bool = False) -> None:
        super().__init__(sentence)
        self.mismatch = mismatch


def bindings() -> Any:
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


def gpu(nvml: Any, index: int, handle: Any, node: str) -> Gpu:
    """Return what NVML knows of a GPU on any platform; the other members are empty."""
    return {
        **procfs.unknown(index, node),
        "nvml": index,
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "model": nvml.nvmlDeviceGetName(handle),
        "brand": brand(nvml, handle),
        "arch": arch(nvml, handle),
        "memory": memory(nvml, handle),
    }


def cuda(nvml: Any, library: str | None) -> str:
    """Return the newest version of CUDA that the driver supports, as 12.2; "" if it is unknown.

    Where an old NVML does not tell it, libcuda does without a GPU; `library` is its path on the host.
    """
    number = ctypes.c_int()
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        number.value = nvml.nvmlSystemGetCudaDriverVersion_v2()
    if not number.value and library:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if number.value else ""


def arch(nvml: Any, handle: Any) -> str:
    """Return a GPU's compute capability, as 8.6, or ""."""
    try:
        return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return ""


def memory(nvml: Any, handle: Any) -> int:
    """Return the memory of a GPU or MIG instance in MiB; 0 for one that has none of its own, as a GB10."""
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
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return bool(nvml.nvmlDeviceGetVirtualizationMode(handle) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    return False


def fabric(nvml: Any, handle: Any) -> str:
    """Return "UUID.CLIQUE" of the cluster that NVLinks make of several hosts; "" if there is none, or not yet."""
    info = _fabric_info(nvml, handle)
    if info and info.state == FABRIC_COMPLETED and info.status == nvml.NVML_SUCCESS and any(info.clusterUuid):
        return f"{uuid.UUID(bytes=bytes(info.clusterUuid))}.{info.cliqueId}"
    return ""


def fabric_problem(nvml: Any, handle: Any) -> str:
    """Return why a GPU's NVLink fabric is not ready; "" if it is, or there is none.

    A fabric manager makes it, and CUDA answers error 802 until then.
    """
    info = _fabric_info(nvml, handle)
    if not info or info.state not in (*FABRIC_STATES, FABRIC_COMPLETED):
        return ""
    if info.state == FABRIC_COMPLETED:
        return "" if info.status == nvml.NVML_SUCCESS else f"it has failed with NVML's error {info.status}"
    return FABRIC_STATES[info.state]


def _fabric_info(nvml: Any, handle: Any) -> Any:
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # old drivers and old bindings know nothing of it
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info
    return None


def addressing(nvml: Any, handle: Any) -> str:
    """Return how a GPU addresses the host's memory, one of ADDRESSING, or ""."""
    with contextlib.suppress(nvml.NVMLError, AttributeError, IndexError):
        return ADDRESSING[nvml.nvmlDeviceGetAddressingMode(handle)]
    return ""


def placement(nvml: Any, parent: Any, gi: int) -> list[int]:
    """Return the first memory slice of a GPU instance and their number, or []."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        slices = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(parent, gi)).placement
        return [int(slices.start), int(slices.size)]
    return []


def attributes(nvml: Any, handle: Any) -> dict[str, int]:
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        counts = nvml.nvmlDeviceGetAttributes_v2(handle)
        return {name: int(getattr(counts, member)) for name, member in ATTRIBUTES.items()}
    return {}


def add_peers(nvml: Any, gpus: Sequence[Gpu], handles: Mapping[int, Any], addresses: set[str]) -> None:
    """Fill in the member "peers" of GPUs that answer: how near they are; no error fails a listing.

    `addresses` are the PCI addresses of all GPUs, also of those that do not answer: a link to any other is to a
    switch.
    """
    links = {gpu["index"]: _links(nvml, handles[gpu["index"]]) for gpu in gpus}
    switched = {
        index: sum(count for pci, count in ends.items() if pci not in addresses) for index, ends in links.items()
    }
    for gpu in gpus:
        number = gpu["index"]
        for peer in gpus:
            peer_number = peer["index"]
            if peer_number != number:  # links to switches lead to every GPU that has such links
                count = links[number][peer["pci"]] + min(switched[number], switched[peer_number])
                gpu["peers"].append([peer_number, _level(nvml, handles[number], handles[peer_number]), count])


def _level(nvml: Any, handle: Any, peer_handle: Any) -> int:
    """Return nvmlGpuTopologyLevel_t of two GPUs: 0 is one board, FURTHEST are two sockets."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return int(nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer_handle))
    return FURTHEST


def _links(nvml: Any, handle: Any) -> Counter[str]:
    """Count a GPU's NVLinks that are up, by the PCI address of their other end."""
    links: Counter[str] = Counter()
    for number in range(NVLINKS):
        # No such link, no NVLink at all, no such function in an old driver or old bindings, or a garbled answer.
        with contextlib.suppress(nvml.NVMLError, AttributeError, UnicodeDecodeError):
            if nvml.nvmlDeviceGetNvLinkState(handle, number):
                links[procfs.pci_address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)] += 1
    return links
