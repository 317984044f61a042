"""What a device plugin asks for that may not list GPUs or start units itself, as one in a pod.

STATE/device-plugin/wanted says {"refresh": true, "units": ["gpushim-mps@GROUP.service"], "boot": boot id, "at":
seconds since boot}, and is served by the next unattended refresh, once: if the snapshot's look at the host began
before. No clock that may be set decides. Only root can have written it, and what it may ask for is a short list.
Out of scope: who starts that refresh (keep.py, gpushim-refresh-cdi.path).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import Any

from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.paths import trust

NAME = "device-plugin/wanted"
RELEASED = "device-plugin/released"  # while the GPUs are let go
LIMIT = 1 << 16  # bytes
UNITS = 256
UNIT = re.compile(r"gpushim-mps@[a-z0-9.-]{1,64}\.service")
SYSTEMCTL = "/usr/bin/systemctl"
SECONDS = 20  # for systemctl, which only queues the starts


def serve(state: str) -> bool:
    """Start the units that are wanted, if the file is newer than the snapshot.

    Args:
        state: gpushim's state directory.

    Returns:
        whether the GPUs are to be listed although the snapshot is true.
    """
    path = f"{state}/{NAME}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)) or not os.path.lexists(path):
        return False
    found = ensure.own(path, LIMIT)
    if not _open(found, path, f"{state}/{ensure.SNAPSHOT}"):
        return False
    units = found.get("units", [])
    if not found or not isinstance(found.get("refresh", False), bool) or not _well_formed(units):
        logger.warning("%s is ignored: it is no request of gpushim-device-plugin's that root alone has written", path)
        return False
    if units:
        _start(units)
    return bool(found.get("refresh", False))


def _open(found: dict[str, Any], path: str, snapshot: str) -> bool:
    """Say whether a wish is newer than the last look at the host."""
    at, last = found.get("at"), ensure.own(snapshot)
    if isinstance(at, (int, float)) and "boot" in found:
        looked = last.get("looked", 0.0) if last.get("stamp", {}).get("boot") == system.boot() else 0.0
        return bool(found["boot"] == system.boot() and looked < at <= system.clock())
    try:  # of a plugin that is older than this; or no wish at all, which is said once
        return os.lstat(path).st_mtime_ns > os.lstat(snapshot).st_mtime_ns
    except OSError:
        return True


def _well_formed(units: Any) -> bool:
    return (
        isinstance(units, list)
        and len(units) <= UNITS
        and all(isinstance(unit, str) and UNIT.fullmatch(unit) for unit in units)
    )


@functools.lru_cache(maxsize=UNITS)  # it is asked for again and again
def _leave_to_init(units: tuple[str, ...]) -> None:
    logger.warning("%s: systemd does not run here; have your init run what they run", " ".join(units))


def _start(units: list[str]) -> None:
    """Have systemd start units; its journal says what becomes of them."""
    if not os.path.isdir(system.SYSTEMD):
        _leave_to_init(tuple(units))
        return
    words, env = [SYSTEMCTL, "start", "--no-block", *units], {"PATH": policy.SYSTEM_PATH, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("%s cannot be started: %s", " ".join(units), error)
        return
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        logger.warning(
            "%s cannot be started: %s", " ".join(units), message or f"systemctl ended with {done.returncode}"
        )
