"""Processes that the plugin starts: by posix_spawn(3), for threads of grpc's hold locks that a fork would copy.

Each is the first of a process group of its own. Out of scope: what is done with what they say (child.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from gpushim.config import policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL = 0.02  # seconds between looks at one that must end


def environment() -> dict[str, str]:
    """Return the variables that each of them gets."""
    return {"PATH": os.environ.get("PATH", policy.SYSTEM_PATH), "LC_ALL": "C.UTF-8"}


def spawn(
    words: list[str], variables: dict[str, str], stdout: int | None, stderr: int | None, stdin: int | None = None
) -> int:
    """Start a program; returns its pid.

    Args:
        words: its command line, with an absolute path.
        variables: its environment, all of it.
        stdout: descriptor of this process; None for /dev/null.
        stderr: likewise.
        stdin: likewise.

    Raises:
        OSError: it cannot be started.
    """
    actions: Any = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    places = ((1, stdout), (2, stderr), (0, stdin))  # 0 last, for until then it is /dev/null
    actions += [(os.POSIX_SPAWN_DUP2, 0 if fd is None else fd, place) for place, fd in places]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP]  # Python ignores two, nohup the other
    return os.posix_spawn(
        words[0], words, variables, file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=defaults
    )


def kill(pid: int) -> None:
    """Kill one with its children; nothing if it has been waited for, since its id may be another's now."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def watched(pid: int, ends: Callable[[], object]) -> Iterator[bool]:
    """Have a function called in the loop when a child of this process ends; it may be called more than once.

    Yields:
        whether the kernel tells it: Linux 5.3, and nothing that forbids pidfd_open(2); else look with `ended`.
    """
    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield False
        return
    loop.add_reader(fd, ends)
    try:
        yield True
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def gone(pid: int) -> int:
    """Wait until one has ended; returns its exit code, or less a signal's number.

    A driver that hangs may hold it, killed or not, for as long as it hangs.
    """
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            await asyncio.sleep(POLL)
    except ChildProcessError:  # somebody else has waited for it
        return -signal.SIGKILL
    return code(ended[1])


def ended(pid: int) -> bool:
    """Say whether one has ended; `gone` is to be called nevertheless."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def alone() -> None:
    """Wait until this process has no child any more, not even one that nobody waits for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                await asyncio.sleep(POLL)


def code(status: int) -> int:
    """Return the exit code in what waitpid(2) told, or less a signal's number."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
