"""GPUs and MIG instances, through NVML where it works, else whole GPUs through /proc.

One sick GPU must not take the others along (each is asked by itself), and NVML's hanging is the caller's matter:
`waiting` tells what is being waited for. Out of scope: device nodes (nodes.py).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from gpushim.errors import DRIVER, GpushimError
from gpushim.inventory import files, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# nvml.h, nvmlBrandType_t; the names are those that CUDA images compare in NVIDIA_REQUIRE_*, whatever their case.
BRANDS = (
    *("Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan"),
    *("NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming"),
    *("QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX"),
)


NVML_FAILS = "NVML"  # begins the note that NVML is there and does not work


def read(root: str, proc: str, version: str, notes: list[str], waiting: Callable[[str], None]) -> dict[str, Any]:
    """Find out which GPUs and MIG instances the host has.

    Args:
        root: the driver root.
        proc: where the procfs that shows the driver is mounted.
        version: of the loaded kernel module.
        notes: gets a sentence for each thing that is not as it should be.
        waiting: called with what is asked next, before each call that may take long.

    Returns:
        {"source", "cuda", "gpus", "mig", "missing"} as the snapshot has them.

    Raises:
        GpushimError: the kernel module and NVML's library are of different versions.
    """
    missing: list[str] = []
    known = procfs.gpus(proc, missing)
    try:
        import pynvml  # the one module here that is not Python's own, and a host may lack it
    except ImportError as error:
        return _without_nvml(known, f"Python's nvidia-ml-py cannot be used ({error})", notes, missing)
    path = files.library(root, "libnvidia-ml.so", version)
    if path is None:
        return _without_nvml(known, f"there is no libnvidia-ml.so.{version} below {root}", notes, missing)
    waiting("NVML to initialise")
    try:
        # pynvml asks the loader for libnvidia-ml.so.1 and gets the library of that SONAME that is loaded already:
        # the one of this driver root and version, whichever others there are.
        ctypes.CDLL(files.inside(root, path), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError) as error:
        if getattr(error, "value", None) == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise mismatch(version, (files.versions(root) or [""])[0]) from None
        return _without_nvml(known, f"{NVML_FAILS} cannot be used ({error})", notes, missing)
    try:
        return _ask(pynvml, proc, known, notes, waiting)
    except pynvml.NVMLError as error:
        return _without_nvml(known, f"{NVML_FAILS} failed ({error})", notes, missing)
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # a lost GPU's complaint; nothing is left to do about it
            pynvml.nvmlShutdown()


def mismatch(module: str, libraries: str) -> GpushimError:
    """Say that kernel module and libraries differ; `libraries` is "", or the module's, if only NVML knows theirs."""
    other = libraries if libraries not in ("", module) else "of another version"
    return GpushimError(
        f"the NVIDIA kernel module is {module} but its libraries are {other}: reboot, or reload the module "
        "(rmmod/modprobe), then run gpushim refresh",
        DRIVER,
    )


def _without_nvml(known: list[dict[str, Any]], why: str, notes: list[str], missing: list[str]) -> dict[str, Any]:
    notes.append(f"{why}: GPUs come from /proc/driver/nvidia, and MIG instances are not listed")
    divided = [gpu for gpu in known if gpu["mig"]]
    missing += [f"the MIG instances of GPU {gpu['index']} ({gpu['pci']}) are not listed: {why}" for gpu in divided]
    notes += missing
    return {"source": "proc", "cuda": "", "gpus": known, "mig": [], "missing": missing}


def _ask(
    nvml: Any, proc: str, known: list[dict[str, Any]], notes: list[str], waiting: Callable[[str], None]
) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = []
    migs: list[dict[str, Any]] = []
    missing: list[str] = []
    sick: dict[int, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        waiting(f"GPU {index} to answer NVML")
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _gpu(nvml, index, handle)
            instances = list(_mig_instances(nvml, proc, handle, gpu, missing)) if gpu["mig"] else []
            gpus.append(gpu)
            migs += instances
        except (nvml.NVMLError, UnicodeDecodeError) as error:
            sick[index] = str(error)
    left = [gpu for gpu in known if gpu["pci"] not in {one["pci"] for one in gpus}]
    gpus += _sick_gpus(sick, left, notes, missing)
    notes += missing
    return {
        "source": "nvml",
        "cuda": _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2()),
        "gpus": sorted(gpus, key=lambda gpu: int(gpu["index"])),
        "mig": migs,
        "missing": missing,
    }


def _gpu(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    minor = nvml.nvmlDeviceGetMinorNumber(handle)
    major, small = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return {
        "index": index,
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "minor": minor,
        "pci": procfs.pci_address(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "model": nvml.nvmlDeviceGetName(handle),
        "brand": _brand(nvml, handle),
        "arch": f"{major}.{small}",
        "mig": _in_mig_mode(nvml, handle),
        "node": f"/dev/nvidia{minor}",
        "drm": [],
        "links": [],
        "problem": None,
    }


def _sick_gpus(
    sick: dict[int, str], left: list[dict[str, Any]], notes: list[str], missing: list[str]
) -> Iterator[dict[str, Any]]:
    """Match GPUs that do not answer NVML with those of /proc that NVML did not tell; both are in PCI order."""
    for (index, error), gpu in zip(sick.items(), left):
        problem = f"GPU {index} ({gpu['pci']}) does not answer NVML: {error}"
        notes.append(problem)
        yield {**gpu, "index": index, "problem": problem}
    for index, error in list(sick.items())[len(left) :]:
        missing.append(
            f"GPU {index} is left out: it does not answer NVML ({error}), and /proc does not tell it either"
        )
    for gpu in left[len(sick) :]:
        missing.append(f"GPU {gpu['pci']} is left out: NVML does not tell it; is its node {gpu['node']} there?")


def _mig_instances(
    nvml: Any, proc: str, parent: Any, gpu: dict[str, Any], missing: list[str]
) -> Iterator[dict[str, Any]]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # no instance at this place
            raise
        gi, ci = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        nodes = procfs.mig_nodes(proc, gpu["minor"], gi, ci)
        if not nodes:
            missing.append(f"MIG instance {uuid} is left out: the kernel does not tell its capability nodes")
            continue
        yield {
            "uuid": uuid,
            "legacy": f"MIG-{gpu['uuid']}/{gi}/{ci}",
            "gpu": gpu["index"],
            "index": index,
            "gi": gi,
            "ci": ci,
            "profile": nvml.nvmlDeviceGetName(handle).rpartition("MIG ")[2],
            "nodes": nodes,
        }


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    return bool(current)  # what is pending comes with the next reset


def _brand(nvml: Any, handle: Any) -> str:
    try:
        number = nvml.nvmlDeviceGetBrand(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        number = 0
    return BRANDS[number] if number < len(BRANDS) else BRANDS[0]


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
