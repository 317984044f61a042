"""The command line of a child that asks NVML, which may hang or crash: no other process is to load it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpushim.paths import rooted

if TYPE_CHECKING:
    from gpushim.ground.model import Snapshot

CALL = "import sys; sys.path[:] = sys.argv[1].split(':'); from MODULE import main; main(*sys.argv[2:])"


def program(module: str, *words: str) -> list[str]:
    """Return a command line that calls a module's `main`: this Python, and the code that this process has."""
    path_list = ":".join(path for path in sys.path if path.startswith("/"))
    call = CALL.replace("MODULE", module)
    return [sys.executable or "/usr/bin/python3", "-ISB", "-c", call, path_list, *words]


def library(snapshot: Snapshot) -> str:
    """Return the path of a host's NVML, or the name by which the loader may find it, as that of a pod does."""
    paths = [file["path"] for file in snapshot["files"].get("utility", ()) if _is_nvml(file["path"])]
    path = rooted.inside(snapshot["inputs"]["root"], paths[0]) if paths else ""
    return path if os.path.exists(path) else "libnvidia-ml.so.1"


def _is_nvml(path: str) -> bool:
    return path.rpartition("/")[2].startswith("libnvidia-ml.so.")
