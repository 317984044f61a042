"""The time slice of GPUs: how long a process computes before the next one may.

NVML has no function for it that is public; nvidia-smi has a command, which changes it for an administrator alone.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from gpuplugin.mps import control_daemon
from gpushim.engines.processes import ask as processes
from gpushim.ground.errors import INVENTORY, GpushimError, quote
from gpushim.inventory import nvml_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushim.ground.model import Snapshot

PROGRAM = "nvidia-smi"
VALUES = ("default", "short", "medium", "long")  # by number
LEAST = 0.5  # seconds for one GPU, also where others have used all that there was
_LISTED = re.compile(rf"time-?slice\W+({'|'.join(VALUES)})\b", re.IGNORECASE)


def ask(snapshot: Snapshot, seconds: float, values: Mapping[str, int | None]) -> dict[str, int]:
    """Set the time slices of GPUs, where one is given, and return else which they are.

    Args:
        seconds: how long each listing may take, and all of the setting.
        values: numbers of VALUES by UUID.

    Raises:
        GpushimError: nvidia-smi is not there, refuses, or takes longer.
    """
    words = [find_program(snapshot), "compute-policy", "-i"]
    library = os.path.dirname(nvml_program.library(snapshot))
    variables = {"LD_LIBRARY_PATH": library} if library and snapshot["driver"]["root"] != "/" else {}
    former, end = {}, time.monotonic() + seconds
    for uuid, value in values.items():
        action = ["-l"] if value is None else ["--set-timeslice", str(value)]
        timeout = seconds if value is None else max(LEAST, end - time.monotonic())
        result = processes.program([*words, uuid, *action], timeout, more=variables)
        match = _LISTED.search(result.out)
        # Where it cannot be listed, it is taken to be what it is unless somebody has set it.
        former[uuid] = VALUES.index(match[1].lower()) if match else 0
        if value is not None and result.code != 0:
            raise GpushimError(f"nvidia-smi does not set the time slice of {uuid}: {quote(result.last)}", INVENTORY)
    return former


def find_program(snapshot: Snapshot) -> str:
    """Return the path of nvidia-smi.

    Raises:
        GpushimError: there is none.
    """
    return control_daemon.find_in_driver(snapshot, PROGRAM, "utility", "nvidia-utils, or nvidia-driver-cuda")
