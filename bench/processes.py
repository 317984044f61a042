"""Processes that are measured: which they are, and the CPU that they have had."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the parent of processes whose own have ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap() -> None:
    """Wait for the children of creates that have ended, so that they count, and are beside nothing else."""
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text() == "gpushim-hook\n":
            os.waitpid(int(pid), 0)


def session(leader: int) -> list[int]:
    """List the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(stat.parent.name))
    return found


def of_container(name: str) -> list[int]:
    """List the processes of a container by its cgroup, its first one first: it has the others as children."""
    found = []
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if name in group.read_text():
                found.append(int(group.parent.name))
    return sorted(found)


def scheduled(pid: int | str) -> float:
    """Return the seconds of CPU of a process's threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def memory(pid: int) -> str:
    """Return what a process has in memory, and what of it is its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return f"{sizes['Rss'] / 1024:.1f} MiB, {own / 1024:.1f} its own"
