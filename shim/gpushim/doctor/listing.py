"""Ask NVML about the GPUs, in a process of its own: `python3 -IB listing.py DRIVER PROC VERSION STATE`.

NVML can hang where nothing but the process's end helps, and a library once loaded stays. Prints one JSON object. The
caller has a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushim.ground.model import DriverPolicy

from_here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def ask(driver: DriverPolicy, proc: str, version: str, state: str) -> dict[str, Any]:
    """List the GPUs; those whose calls are known to hang are not asked.

    Returns:
        "seconds" (that NVML took to initialise), "source", "gpus" and "notes" as inventory.gpus has them, and
        "persistence": true, false or null (not known) for each GPU.
    """
    from gpushim.ground.errors import GpushimError
    from gpushim.inventory import driver_files, earlier, gpus, modules, nodes, nvml
    from gpushim.paths import rooted

    notes: list[str] = []
    root, withheld = driver["root"], partial(nodes.withheld, driver=driver)
    result: dict[str, Any] = {"seconds": 0.0, "error": "", "persistence": [], "notes": notes}
    path = driver_files.library(root, "libnvidia-ml.so", version)
    with contextlib.ExitStack() as stack:
        begin, session = time.monotonic(), None
        with contextlib.suppress(nvml.UnusableError):  # gpus.read says it
            session = path and stack.enter_context(nvml.session(rooted.inside(root, path), lambda task: None))
        result["seconds"] = time.monotonic() - begin
        try:  # initialised, it costs nothing
            hung = earlier.hung_now(state, proc, modules.sys_dir(root))
            indexed = earlier.settled(state)
            result.update(gpus.read(root, proc, version, notes, lambda task: None, indexed, hung, withheld))
        except GpushimError as error:
            result["error"] = str(error)
            return result
        if session and result["source"] == "nvml":
            result["persistence"] = [_persistence(session, gpu) for gpu in result["gpus"]]
    return result


def _persistence(nvml: Any, gpu: Any) -> bool | None:
    if gpu["problem"]:
        return None
    try:  # by its address, which touches no other
        return bool(nvml.nvmlDeviceGetPersistenceMode(nvml.nvmlDeviceGetHandleByPciBusId(gpu["pci"].encode())))
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.path.insert(0, from_here)
    sys.path += [from_here + "/vendor", from_here + "/../vendor"]
    json.dump(ask(json.loads(sys.argv[1]), *sys.argv[2:5]), sys.stdout)
