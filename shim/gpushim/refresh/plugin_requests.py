"""Requests of a device plugin that may not list GPUs or start units itself, as one in a pod.

STATE/device-plugin/wanted, {"refresh": true, "units": ["gpushim-mps@GROUP.service"], "boot": boot id, "at": seconds
since boot}, is served once by the next unattended refresh: if the snapshot's survey began before it. Only root can
have written it.
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
    """Start the requested units, if the request is newer than the snapshot.

    Returns:
        whether the GPUs are to be listed although the snapshot is true.
    """
    path = f"{state}/{NAME}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)) or not os.path.lexists(path):
        return False
    request = ensure.own(path, LIMIT)
    if not _is_open(request, path, f"{state}/{ensure.SNAPSHOT}"):
        return False
    units = request.get("units", [])
    if not request or not isinstance(request.get("refresh", False), bool) or not _is_well_formed(units):
        logger.warning("%s is ignored: it is no request of gpushim-device-plugin's that root alone has written", path)
        return False
    if units:
        _start(units)
    return bool(request.get("refresh", False))


def _is_open(request: dict[str, Any], path: str, snapshot: str) -> bool:
    at, last = request.get("at"), ensure.own(snapshot)
    if isinstance(at, (int, float)) and "boot" in request:
        looked = last.get("looked", 0.0) if last.get("stamp", {}).get("boot") == system.boot() else 0.0
        return bool(request["boot"] == system.boot() and looked < at <= system.clock())
    try:  # of an older plugin; or no request at all, which is logged once
        return os.lstat(path).st_mtime_ns > os.lstat(snapshot).st_mtime_ns
    except OSError:
        return True


def _is_well_formed(units: Any) -> bool:
    return (
        isinstance(units, list)
        and len(units) <= UNITS
        and all(isinstance(unit, str) and UNIT.fullmatch(unit) for unit in units)
    )


@functools.lru_cache(maxsize=UNITS)  # the plugin repeats its request
def _leave_to_init(units: tuple[str, ...]) -> None:
    logger.warning("%s: systemd does not run here; have your init run what they run", " ".join(units))


def _start(units: list[str]) -> None:
    if not os.path.isdir(system.SYSTEMD):
        _leave_to_init(tuple(units))
        return
    words, env = [SYSTEMCTL, "start", "--no-block", *units], {"PATH": policy.SYSTEM_PATH, "LC_ALL": "C.UTF-8"}
    try:
        result = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("%s cannot be started: %s", " ".join(units), error)
        return
    if result.returncode:
        message = result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        logger.warning(
            "%s cannot be started: %s", " ".join(units), message or f"systemctl ended with {result.returncode}"
        )
