"""Which DRM nodes (graphics and display) belong to which GPU, and their links by PCI address.

Out of scope: making them; the kernel and udev do that when nvidia_drm is loaded.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gpushim.inventory import procfs

if TYPE_CHECKING:
    from gpushim.ground.model import Gpu

FOLDER = "/dev/dri"
_NODE = re.compile(r"card\d+|renderD\d+")


def add(gpus: list[Gpu], sys: str, dev_root: str) -> None:
    """Fill in the members "drm" and "links" of GPUs."""
    links = list(_links(dev_root))
    for gpu in gpus:
        own = f"{sys}/bus/pci/devices/{procfs.sysfs_name(gpu['pci'])}/drm" if gpu["pci"] else ""
        names = [name for name in _listing(own) if _NODE.fullmatch(name)] if own else []
        gpu["drm"] = [f"{FOLDER}/{name}" for name in names]
        gpu["links"] = [f"{target}::{path}" for target, path in links if target[len("../") :] in names]


def _links(dev_root: str) -> list[tuple[str, str]]:
    """List udev's links by path: the target of each, and its path in a container."""
    folder = f"{FOLDER}/by-path"
    host = folder if dev_root == "/" else dev_root + folder
    found = []
    for name in _listing(host):
        try:
            target = os.readlink(f"{host}/{name}")
        except OSError:
            continue  # not a link
        if re.fullmatch(r"\.\./\w+", target):
            found.append((target, f"{folder}/{name}"))
    return found


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
