"""A GPU and a device node as the snapshot has them.

Out of scope: files (rooted.entry).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushim.ground.model import Gpu, Node


def gpu(
    index: int,
    node: str,
    *,
    uuid: str = "",
    nvml: int = -1,
    minor: int = 0,
    pci: str = "",
    model: str = "",
    brand: str = "",
    arch: str = "",
    memory: int = 0,
    mig: bool = False,
    mig_capable: bool = False,
    vgpu: bool = False,
    fabric: str = "",
    numa: int = -1,
) -> Gpu:
    """Return a GPU; what is unknown, or has no meaning on its platform, is empty."""
    return {
        "index": index,
        "nvml": nvml,
        "uuid": uuid,
        "minor": minor,
        "pci": pci,
        "model": model,
        "brand": brand,
        "arch": arch,
        "memory": memory,
        "mig": mig,
        "mig_capable": mig_capable or mig,
        "vgpu": vgpu,
        "pci_class": "",
        "fabric": fabric,
        "numa": numa,
        "peers": [],
        "node": node,
        "drm": [],
        "links": [],
        "problem": None,
    }


def node(status: os.stat_result) -> Node:
    """Return a device node."""
    numbers = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    return [*numbers, status.st_mode & 0o777, status.st_uid, status.st_gid]
