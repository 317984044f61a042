"""How a GPU and a device node are written down in the snapshot.

Out of scope: files (rooted.entry), and finding anything out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushim.model import Gpu, Node


def gpu(
    index: int,
    node: str,
    *,
    uuid: str = "",
    minor: int = 0,
    pci: str = "",
    model: str = "",
    brand: str = "",
    arch: str = "",
    mig: bool = False,
) -> Gpu:
    """Write a GPU; what is not known, or has no meaning on a platform, is empty."""
    return {
        "index": index,
        "uuid": uuid,
        "minor": minor,
        "pci": pci,
        "model": model,
        "brand": brand,
        "arch": arch,
        "mig": mig,
        "node": node,
        "drm": [],
        "links": [],
        "problem": None,
    }


def node(status: os.stat_result) -> Node:
    """Write a device node."""
    numbers = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    return [*numbers, status.st_mode & 0o777, status.st_uid, status.st_gid]
