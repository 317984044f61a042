"""The child of a device plugin that waits for events of GPUs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from e2e.leftovers import until
from e2e.plugins import Plugin

NAME = "gpushim-events"
POLL = "7"  # poll(2) of x86_64, in which the simulated NVML waits
CALM = 1.5  # seconds; a child that knows an older host is ended sooner


def waiting(one: Plugin) -> int:
    """Return the process of a plugin's that waits for events; 0 if there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text() == NAME + "\n":
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                waits = (process / "syscall").read_text().split()[0] == POLL
                if one.process and parent == one.process.pid and waits:
                    return int(process.name)
    return 0


def watches(one: Plugin, seconds: float) -> None:
    """Wait until a plugin hears of events: nobody does while a child starts, as it does for each change of GPUs."""
    seen = [0, 0.0]

    def calm() -> bool:
        now, found = time.monotonic(), waiting(one)
        if found != seen[0] or not found:
            seen[:] = [found, now]
        return bool(found) and now - seen[1] > CALM

    assert until(calm, seconds), one.said()[-4000:]
