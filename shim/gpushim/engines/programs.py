"""Programs of engines that may be executed: those in a few directories, if nobody but root could have put them there.

No path that a process, a settings file or an image names is ever executed. Out of scope: what is asked of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim.engines import places
from gpushim.policy import SYSTEM_PATH

if TYPE_CHECKING:
    from gpushim.engines.running import Engine

# Beside the system's: k3s, rke2, MicroK8s and k0s bring a containerd of their own.
DIRECTORIES = (
    *SYSTEM_PATH.split(":"),
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/snap/microk8s/current/bin",
    "/var/lib/k0s/bin",
)


def find(name: str, engine: Engine | None = None) -> str:
    """Find the program of an engine.

    Args:
        name: such as "containerd".
        engine: the running one, whose program it must be; None for any.

    Returns:
        a path in one of DIRECTORIES; "" if none there is it, or somebody else could have made it.
    """
    for folder in DIRECTORIES:
        path = f"{folder}/{name}"
        # An upgrade replaces the file, not its path.
        its = engine is None or not engine.exe or engine.exe in (path, os.path.realpath(path))
        if its and places.program(path):
            return path
    return ""
