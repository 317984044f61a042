"""Wait until the driver has stopped changing, so that an unattended refresh does not disturb an upgrade.

An installer unloads the modules one after the other, and fails if anybody opens a GPU or loads one of them meanwhile;
it calls ldconfig, which starts the refresh. Out of scope: creates, which somebody waits for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import libraries, procfs, stamp
from gpushim.paths import rooted

if TYPE_CHECKING:
    from gpushim.ground.model import Snapshot

REST = 3.0  # seconds without a change; unloading all modules takes less
LIMIT = 60.0  # seconds; then the host is surveyed although it keeps changing
PAUSE = 0.2
LIVE = "Live"  # state of a module, the fifth word of its line in /proc/modules


def wait(root: str, proc: str) -> None:
    """Wait until the driver's modules and the library caches have been the same for a while.

    Raises:
        GpushimError: after LIMIT, a module is still being loaded or unloaded.
    """
    began = since = time.monotonic()
    seen = _facts(root, proc)
    while (now := time.monotonic()) - since < REST and now - began < LIMIT:
        time.sleep(PAUSE)
        found = _facts(root, proc)
        if found != seen or any(state != LIVE for _, state in found[0]):
            seen, since = found, time.monotonic()
    if any(state != LIVE for _, state in seen[0]):
        raise GpushimError(
            "the driver's kernel module is being loaded or unloaded, for a minute now; run gpushim refresh later",
            INVENTORY,
        )


def untouched(snapshot: Snapshot, proc: str) -> bool:
    """Say whether the driver is as a snapshot has it, though GPUs, MIG instances or their nodes may not be.

    Who upgrades it takes modules away first, and with them lines of /proc/devices and the nodes in /dev/dri.

    Args:
        snapshot: the last one, or {}.
        proc: stamp.proc_dir.
    """
    if not snapshot or any(state != LIVE for _, state in _modules(proc)):
        return False
    paths, then, now = snapshot["inputs"]["nodes"], snapshot["stamp"], stamp.current(snapshot["inputs"])
    facts = zip(paths, then["nodes"], now["nodes"])
    others = [(one, other) for path, one, other in facts if "/dev/" not in path or "/dev/dri" in path]
    driver = [(one["boot"], one["module"], one["majors"], one["libraries"]) for one in (then, now)]
    return then["module"] is not None and driver[0] == driver[1] and all(one == other for one, other in others)


def _facts(root: str, proc: str) -> tuple[list[tuple[str, str]], object]:
    caches = {libraries.CACHE, rooted.inside(root, libraries.CACHE)}
    return _modules(proc), (procfs.module_version(proc), [stamp.node(path) for path in sorted(caches)])


def _modules(proc: str) -> list[tuple[str, str]]:
    try:
        with open(proc + "/modules", encoding="ascii", errors="replace") as file:
            fields = [line.split() for line in file if line.startswith("nvidia")]
    except OSError:
        return []
    return [(words[0], words[4] if len(words) > 4 else LIVE) for words in fields]
