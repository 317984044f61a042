"""The child of a device plugin that waits for events of GPUs."""

from __future__ import annotations

import contextlib
from pathlib import Path

from e2e.plugins import Plugin

NAME = "gpushim-events"
POLL = "7"  # poll(2) of x86_64, in which the simulated NVML waits


def watching(one: Plugin) -> bool:
    """Say whether a plugin's child waits for events; one that starts hears of none."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text() == NAME + "\n":
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if one.process and parent == one.process.pid:
                    return (process / "syscall").read_text().split()[0] == POLL
    return False
