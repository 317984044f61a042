"""Whether a machine has an NVIDIA device at all, with a driver or without one."""

from __future__ import annotations

import os

from gpushim.inventory import ensure, modules, platforms
from gpushim.paths import rooted

DRIVER = "/driver/nvidia/version"  # below /proc: a driver that has a GPU in some other way
CONTAINER = "/run/nvidia/driver"  # where the GPU operator has its driver
LOADED = "/module/nvidia"  # below /sys


def has_device(root: str, dev_root: str) -> bool:
    """Return whether there is a PCI display controller of NVIDIA's, a loaded driver, WSL's device, or a Tegra."""
    sys = modules.sys_dir(root)
    procs = ensure.proc_dir(root), rooted.inside(root, CONTAINER + "/proc")
    paths = (*(proc + DRIVER for proc in procs), sys + LOADED, rooted.inside(dev_root, platforms.NODE))
    return modules.has_gpu(sys) or any(os.path.lexists(path) for path in paths) or platforms.is_tegra(root)
