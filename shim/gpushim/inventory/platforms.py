"""Systems whose GPUs are not PCI cards under NVIDIA's kernel module: WSL2 and Tegra.

Out of scope: what is particular to one of them (wsl.py, tegra.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushim.inventory import tegra, wsl

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushim.ground.model import DriverPolicy, Listed, Platform


def find(driver: DriverPolicy, notes: list[str]) -> Platform | None:
    """Find nodes and files, if this is such a system; a stat and two short reads tell that it is none."""
    root, dev_root = driver["root"], driver["dev-root"]
    return wsl.find(root, dev_root, notes) or tegra.find(root, dev_root, driver["csv-directory"], notes)


def gpus(found: Platform, root: str, notes: list[str], waiting: Callable[[str], None]) -> Listed:
    """List the GPUs of such a system."""
    if found["platform"] == "wsl":
        return wsl.gpus(root, notes, waiting)
    return tegra.gpus(root, found["nodes"])
