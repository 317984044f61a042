"""The units that run the MPS daemons of groups: looked at, and started where they are missing.

Where there is no systemd, as in a pod, the node is asked to (node_requests.py).

Out of scope: the daemons (supervisor.py), what a group is (division.py).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.devices import division
from gpuplugin.mps import mps
from gpuplugin.processes import process
from gpuplugin.snapshot import node_requests
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.refresh.plugin_requests import SYSTEMCTL

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gpuplugin.devices.division import MpsGroup
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

AGAIN = 10.0  # seconds between starts


class Units:
    """All of them.

    Args:
        start: starts a task, and sees to what it ends with.
    """

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._start = start
        self._ready: list[str] = []
        self._next = 0.0  # time.monotonic()

    def look(self, snapshot: Snapshot, settings: Settings) -> bool:
        """Have units started that are missing, and say whether what clients find has changed."""
        groups, state = _groups(snapshot, settings), system.state_dir()
        units = mps.missing(state, groups) if groups and time.monotonic() >= self._next else []
        if units:
            self._next = time.monotonic() + AGAIN
            self._begin(units)
        before, self._ready = self._ready, [mps.ready(state, group) for group in groups]
        return self._ready != before

    def _begin(self, units: list[str]) -> None:
        if os.path.isdir(system.SYSTEMD):
            self._start(_run([SYSTEMCTL, "start", "--no-block", *units]))
            return
        try:
            node_requests.ask(units=units)
        except OSError as error:
            logger.warning("the node cannot be asked to start %s: %s", ", ".join(units), error.strerror)


def _groups(snapshot: Snapshot, settings: Settings) -> list[MpsGroup]:
    if snapshot["error"]:
        return []
    try:
        return division.mps_groups(snapshot, settings)
    except GpushimError:  # who offers the devices meets it, too, and says it
        return []


async def _run(words: list[str]) -> None:
    """Run a command; systemd starts the units, and its journal says what becomes of them."""
    try:
        pid = process.spawn(words)
    except OSError as error:
        logger.warning("%s cannot be started: %s", words[0], error.strerror)
        return
    code = await process.gone(pid)
    if code > 0:  # by a signal: who ends all children has ended it, too
        logger.warning("%s has ended with %s", " ".join(words), code)
