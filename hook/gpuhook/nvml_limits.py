"""The program of a child of the hook: set limits of GPU memory by NVML, read them back, and print what came of it.

It prints one JSON object: {"error": a sentence, "" where all are in force}.
Source: nvmlDeviceSetMemoryLimits_v1 of NVML's reference: root alone, no MIG, a full path below /sys/fs/cgroup.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from gpushim.inventory import nvml

NEEDS = "the kernel has no controller dmem, and limits by the driver alone need"


def main(argv: list[str]) -> None:
    """Set limits: NVML's path, the cgroup's directory, and PCI=BYTES for each."""
    library, cgroup, *words = argv
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        hard = resource.getrlimit(kind)[1]  # the hook has lowered the soft ones, and NVML maps gigabytes
        resource.setrlimit(kind, (hard, hard))
    limits = {pci: int(size) for pci, _, size in (word.partition("=") for word in words)}
    try:
        with nvml.session(library, lambda what: None) as session:
            errors = [_set(session, cgroup, pci, size) for pci, size in limits.items()]
            error = next(filter(None, errors), "")
    except nvml.UnusableError as unusable:
        error = str(unusable)
    json.dump({"error": error}, sys.stdout)


def _set(session: Any, cgroup: str, pci: str, size: int) -> str:
    """Return why a limit is not in force, or ""."""
    if not hasattr(session, "nvmlDeviceSetMemoryLimits_v1"):
        return f"{NEEDS} a newer nvidia-ml-py"
    try:
        handle = session.nvmlDeviceGetHandleByPciBusId(pci.encode())
        limits = session.c_nvmlSetMemoryLimits_v1_t()
        # Nothing is promised: the soft limit is memory that others cannot have.
        limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), 0, size
        session.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        answer = session.c_nvmlGetMemoryLimits_v1_t()
        answer.nameSpace = cgroup.encode()
        session.nvmlDeviceGetMemoryLimits_v1(handle, answer)
    except session.NVMLError_FunctionNotFound:
        return f"{NEEDS} driver 615 or newer"
    except session.NVMLError_NotSupported:
        return f"{NEEDS} a GPU that is not in MIG mode: GPU {pci}"
    except session.NVMLError as error:
        return f"NVML refuses the limit of GPU {pci}: {error}"
    return "" if answer.hardLimit <= size else f"NVML keeps {answer.hardLimit} bytes for GPU {pci}, not {size}"
