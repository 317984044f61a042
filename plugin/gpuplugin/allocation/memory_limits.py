"""Limits of GPU memory of shares, where the driver keeps any: what a front tells the hook, which sets them.

A container's limit is a mount whose source is named for it, in a directory of root's: LIMITS/<UUID>=<bytes>. Neither
an image nor a pod's variable can say another; a pod that may mount files of the host can only add a lower one.
Out of scope: how much a share has (division.py), and setting it (gpuhook/cgroup_limits.py).
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpushim.decision import memory
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import save
from gpushim.oci.authorization import LIMITS
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.settings.resources import Device
    from gpushim.ground.model import Snapshot

CONTAINER_FOLDER = system.STATE_DIR + LIMITS
WITHOUT = "limits of shares are kept by MPS for each process, or not at all"


def missing(snapshot: Snapshot) -> str:
    """Return why no limit of a share can be set on this host, or ""."""
    reason = memory.missing_here(snapshot)
    return f"the driver keeps no limit of GPU memory: {reason}; {WITHOUT}" if reason else ""


def mounts(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Return the mounts that limit a container to its shares, those of one GPU together.

    A GPU of which it has a part without a limit, and a MIG instance, which has memory of its own, are left out.

    Raises:
        GpushimError: the file cannot be written.
    """
    sizes: dict[str, int] = defaultdict(int)
    for device in devices:
        if device.share and device.share.memory:
            sizes[device.uuid] += device.share.memory << 20
    endless = {device.uuid for device in devices if device.placement or not (device.share and device.share.memory)}
    return [_mount(uuid, size) for uuid, size in sizes.items() if uuid not in endless]


def _mount(uuid: str, size: int) -> dict[str, Any]:
    # CRI-O has one mount for each place: no pod can name this one, and have a volume of its own there instead.
    return {
        "container_path": f"{CONTAINER_FOLDER}{secrets.token_hex(8)}",
        "host_path": write_file(uuid, size),
        "read_only": True,
    }


def write_file(uuid: str, size: int) -> str:
    """Write the file that a container with a limit, in bytes, has mounted, and return its path.

    Raises:
        GpushimError: it cannot be written.
    """
    state = system.state_dir()
    path = f"{state}{LIMITS}{uuid}={size}"
    try:
        if not os.path.exists(path):
            save.prepare(state)
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            replace(path, f"{size >> 20} MiB\n".encode(), durable=False)
    except OSError as error:
        raise GpushimError(f"{path}, a limit of GPU memory, cannot be written: {error.strerror}", INVENTORY) from None
    return path
