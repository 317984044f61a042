"""The check of limits of GPU memory: whether this host can enforce any, and by the kernel or the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushim.decision import memory
from gpushim.doctor import Finding, Host, broken, ok, skipped
from gpushim.ground import system
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROLLERS_SIZE = 4096  # bytes of a line of a dozen names


def limits(host: Host) -> Iterator[Finding]:
    """Check that limits of GPU memory can be kept where config.toml sets any."""
    snapshot, stale = ensure.last(host.config, host.state)
    if not snapshot or stale or snapshot["error"]:
        yield skipped("there is no current snapshot")
        return
    missing, requests = memory.missing_here(snapshot), snapshot["policy"]["requests"]
    sizes = {memory.DEFAULT: requests["memory-limit-default"], memory.MOST: requests["memory-limit-most"]}
    keys = [key for key, size in sizes.items() if size and requests["memory-limits"] == "required"]
    if not missing:
        yield ok(f"limits of GPU memory are kept by {_name_kernel_or_driver()}")
    elif keys:
        yield broken(
            f"containers with a whole GPU are refused: {' and '.join(keys)} under [requests] of config.toml limit "
            f"their memory, and {missing}",
            f'memory-limits = "wanted" under [requests] of {host.config}, or without {" and ".join(keys)}',
        )
    else:
        yield ok(f"a container that asks for a limit of GPU memory is refused: {missing}")


def _name_kernel_or_driver() -> str:
    if "dmem" in (system.text(memory.CONTROLLERS, CONTROLLERS_SIZE) or "").split():
        return "the kernel (dmem)"
    return "the driver itself, as this kernel has no CONFIG_CGROUP_DMEM"
