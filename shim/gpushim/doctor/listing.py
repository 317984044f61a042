"""Ask NVML about the GPUs, in a process of its own: `python3 -IB listing.py ROOT PROC VERSION`.

NVML can hang where nothing but the process's end helps, and a library once loaded stays. Prints one JSON object.
Out of scope: the deadline, which is the caller's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

from_here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def ask(root: str, proc: str, version: str) -> dict[str, Any]:
    """List the GPUs.

    Args:
        root: the driver root.
        proc: where the procfs that shows the driver is mounted.
        version: of the loaded kernel module.

    Returns:
        "seconds" (that NVML took to initialise), "source", "gpus" and "notes" as inventory.gpus tells them, and
        "persistence": by GPU, true, false, or null for what NVML does not tell.
    """
    from gpushim.errors import GpushimError
    from gpushim.inventory import files, gpus

    notes: list[str] = []
    found: dict[str, Any] = {"seconds": 0.0, "error": "", "persistence": [], "notes": notes}
    begin = time.monotonic()
    nvml = _started(files.library(root, "libnvidia-ml.so", version), root)
    found["seconds"] = time.monotonic() - begin
    try:
        found.update(gpus.read(root, proc, version, notes, lambda what: None))
    except GpushimError as error:
        found["error"] = str(error)
        return found
    if nvml and found["source"] == "nvml":
        found["persistence"] = [_persistence(nvml, gpu["index"]) for gpu in found["gpus"]]
    return found


def _started(path: str | None, root: str) -> Any:
    """Initialise NVML, so that later initialisations cost nothing; None if it cannot be."""
    try:
        import pynvml

        from gpushim.inventory import files

        if path is None:
            return None
        ctypes.CDLL(files.inside(root, path), mode=ctypes.RTLD_GLOBAL)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None  # gpus.read says it
        return pynvml
    except (ImportError, OSError):
        return None


def _persistence(nvml: Any, index: int) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetPersistenceMode(nvml.nvmlDeviceGetHandleByIndex(index)))
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.path.insert(0, from_here)
    sys.path += [from_here + "/vendor", from_here + "/../vendor"]
    json.dump(ask(*sys.argv[1:4]), sys.stdout)
