"""A directory for an engine's state, and the proof that nothing of the engine outlives it.

Processes, mounts and cgroups are looked for by the directory's name, which engines put into all three. What is
found is removed, and fails the test.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import scratch

STOP_SECONDS = 30.0
SHIM_SECONDS = 5.0
CGROUP_SECONDS = 3.0


@contextlib.contextmanager
def state() -> Iterator[Path]:
    """Make a directory for an engine's state; its name is also that of the engine's cgroup.

    Yields:
        The directory.
    """
    # Not pytest's own directory: a unix socket's path ends at 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="engine-", dir=scratch.top()))
    try:
        yield directory
    finally:
        # containerd's shims answer first and end then.
        until(lambda: not processes(directory), SHIM_SECONDS)
        left = [*_kill_all(directory), *_unmount_all(directory), *_remove_cgroups(directory.name)]
        shutil.rmtree(directory)
        assert not left, f"the engine left behind: {left}"


def until(condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Wait for a condition, with a pause between looks; return whether it came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause)
    return False


def processes(directory: Path, word: str = "") -> list[int]:
    """List the processes with a directory, and a word, on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if os.fsencode(directory) in line and word.encode() in line:
                found.append(int(entry.name))
    return found


def _kill_all(directory: Path) -> list[str]:
    left = []
    for pid in processes(directory):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            os.kill(pid, signal.SIGKILL)
            left.append(f"process {pid}: {command}")
    until(lambda: not processes(directory), STOP_SECONDS)
    return left


def _unmount_all(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [point for point in (line.split()[4] for line in lines) if point.startswith(f"{directory}/")]
    for point in reversed(points):
        subprocess.run(["/bin/umount", "--lazy", point], check=False)
    return [f"mount {point}" for point in points]


def _remove_cgroups(name: str) -> list[str]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    tops = [Path(words[1], name) for words in mounts if words[2] in ("cgroup", "cgroup2")]
    # Engines keep their common cgroup, which holds none of a container any more.
    busy = [top for top in tops if not until(functools.partial(removed, top), CGROUP_SECONDS)]
    return [f"cgroup {top}" for top in busy]


def groups(top: Path) -> Iterator[tuple[str, list[int]]]:
    """List the cgroups below one, and the processes of each; pathlib trips over those that go meanwhile."""
    for group, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            yield group, [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]


def removed(top: Path) -> bool:
    """Remove a cgroup, and those in it; return whether that is done."""
    for directory, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not top.exists()
