"""Requests to the node, for the plugin calls no NVML and may not in a pod: renew the snapshot, start units.

They are in a file, and `gpushim refresh --keep` on the node carries them out when the file changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.processes import counts, spawn
from gpuplugin.snapshot import node_snapshot, release
from gpuplugin.snapshot.node_snapshot import RENEWED
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, failure, renew
from gpushim.paths import lock, trust
from gpushim.paths.replace import replace
from gpushim.refresh import plugin_requests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Snapshot

RECENT = 5.0  # seconds in which what was asked for may not have been read
ANSWER = 10.0  # seconds for the node to begin a refresh, and to end a usual one
GRACE = 10  # seconds after its own deadline (deadline-seconds under [refresh]) in which it may still end
REFRESH = "refresh"  # no unit's name
FIRST, LONGEST = 1.0, 60.0  # seconds between requests


def ask(renewed: bool = False, units: Iterable[str] = ()) -> None:
    """Write a request for the node, together with those of just now.

    Raises:
        OSError: the file cannot be written.
    """
    path = f"{system.state_dir()}/{plugin_requests.NAME}"
    stored: dict[str, Any] = ensure.own(path) if trust.ours(release.folder()) else {}
    boot, now = system.boot(), system.clock()
    times = stored.get("times") if stored.get("boot") == boot else None  # of each, for another may be asked for soon
    times_by_name = (
        {name: time for name, time in times.items() if _recent(time, now)} if isinstance(times, dict) else {}
    )
    times_by_name.update(dict.fromkeys((*units, *[REFRESH] * renewed), now))
    newest = sorted(times_by_name.keys() - {REFRESH}, key=lambda name: (-times_by_name[name], name))[
        : plugin_requests.UNITS
    ]
    times = {name: times_by_name[name] for name in (REFRESH, *newest) if name in times_by_name}
    request = {REFRESH: REFRESH in times, "units": sorted(newest), "boot": boot, "at": now, "times": times}
    replace(path, json.dumps(request).encode(), 0o600)


def _recent(time: Any, now: float) -> bool:
    return isinstance(time, (int, float)) and 0 <= now - time < RECENT


class Renewal:
    """The snapshot, and the request that the node renew it.

    Attributes:
        problem: why none comes; None if one does.
    """

    def __init__(self) -> None:
        self.problem: GpushimError | None = None
        self._asked = 0.0  # system.clock() since it is asked for; 0 while it is not
        self._pause, self._again = FIRST, 0.0  # seconds; time.monotonic()
        self._since = 0.0  # system.clock(); what was looked at before does not count
        self._first: Snapshot | None = None
        self._came, self._before = node_snapshot.NewGpus(), node_snapshot.LastRead()
        self._logged = ""

    def read(self) -> Snapshot | None:
        """Return the snapshot that counts, or None.

        Raises:
            OutdatedError: in a pod, the container lacks what another would have.
        """
        snapshot, problem = node_snapshot.read(system.state_dir(), self._before)
        if snapshot and not problem and snapshot["looked"] < self._since:
            problem = GpushimError(
                f"{system.state_dir()}/{ensure.SNAPSHOT} is of before a release; {RENEWED}", INVENTORY
            )
        if snapshot and not problem:
            self._first = self._first or snapshot
            if os.environ.get(node_snapshot.POD):
                node_snapshot.check_driver(self._first, snapshot)
                self._came.look(snapshot)
        if self._asked and snapshot and snapshot["looked"] > self._asked and not problem:
            counts.took(counts.REFRESHES, system.clock() - self._asked)
            self._asked, self._pause, self._again = 0.0, FIRST, 0.0
        if problem or self._asked:
            self.need()
            self._judge(problem)
        else:
            self.problem, self._logged = None, ""
        return None if problem else snapshot

    def last(self) -> Snapshot | None:
        """Return the last one that can be read, though it may be out of date."""
        return node_snapshot.read(system.state_dir(), self._before)[0]

    def need(self) -> None:
        """Request it, unless it was requested just now."""
        self._asked = self._asked or system.clock()
        if time.monotonic() < self._again:
            return
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST)
        try:
            ask(renewed=True)
        except OSError as error:
            logger.warning("%s/%s cannot be written: %s", system.state_dir(), plugin_requests.NAME, error.strerror)

    def hurry(self) -> None:
        """Request it now: there is news of GPUs. A refresh that runs and waits in vain ends by itself."""
        self._pause, self._again, self._asked = FIRST, 0.0, system.clock()
        self.need()

    def begin_anew(self) -> None:
        """Request one, and ignore those made before: the driver may be another one, of which a pod sees nothing."""
        self._since = system.clock()
        self.hurry()

    async def over(self) -> None:
        """Wait until the refresh that runs, and has the GPUs open, has ended."""
        while lock.is_held(f"{system.state_dir()}/{renew.LOCK}"):
            await asyncio.sleep(spawn.POLL)

    def _judge(self, problem: GpushimError | None) -> None:
        """Set the problem if no request was answered for as long as that takes."""
        state, waited = system.state_dir(), system.clock() - self._asked
        report = ensure.own(f"{state}/{failure.FAILURE}")
        if isinstance(report.get("at"), int) and report["at"] / 1e9 > self._asked:
            self.problem = GpushimError(str(report.get("sentence")), INVENTORY)
        elif waited > longest() or (waited > ANSWER and not lock.is_held(f"{state}/{renew.LOCK}")):
            path = f"{state}/{ensure.SNAPSHOT}"
            silent = GpushimError(f"{path} was asked for and is not renewed; {RENEWED}", INVENTORY)
            self.problem = problem or silent
        if self.problem and str(self.problem) != self._logged:
            self._logged = str(self.problem)
            counts.add(counts.REFRESH_ERRORS)
            logger.warning("%s", self._logged)


def longest() -> int:
    """Return the seconds that a refresh may take."""
    try:
        settings = policy.load(system.config_path())
    except GpushimError:  # the refresh reports it
        settings = policy.defaults()
    return int(settings["refresh"]["deadline-seconds"]) + GRACE
