"""Processes that the plugin starts: by posix_spawn(3), for threads of grpc's hold locks that a fork would copy.

Each is the first of a process group of its own, and is waited for by its starter, which thus kills no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from gpushim.config import policy

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL = 0.02  # seconds between looks at one that must end


def spawn(
    words: list[str], stdin: int = 0, stdout: int = 0, stderr: int = 0, variables: Mapping[str, str] | None = None
) -> int:
    """Start a program; return its pid.

    Args:
        words: its command line, with an absolute path.
        stdin: descriptor of this process; 0 for /dev/null.
        stdout: likewise.
        stderr: likewise.
        variables: its environment, all of it; None for what each needs.

    Raises:
        OSError: it cannot be started.
    """
    actions: Any = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    # 0 last, for until then it is /dev/null
    actions += [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in ((1, stdout), (2, stderr), (0, stdin))]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP]  # Python ignores two, nohup the other
    if variables is None:
        variables = {"PATH": os.environ.get("PATH", policy.SYSTEM_PATH), "LC_ALL": "C.UTF-8"}
    return os.posix_spawn(
        words[0], words, variables, file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=defaults
    )


def kill(pid: int) -> None:
    """Kill one with its children; do nothing if it has been waited for, since its id may be another's now."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


async def wait_for(pid: int) -> int:
    """Wait until one has ended; return its exit code, or less a signal's number.

    A driver that hangs may hold it, killed or not, for as long as it hangs.
    """
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            await asyncio.sleep(POLL)
    except ChildProcessError:  # somebody else has waited for it
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(ended[1])


def has_ended(pid: int) -> bool:
    """Return whether one has ended; it is to be waited for nevertheless."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def wait_for_all() -> None:
    """Wait until this process has no child any more, not even one that nobody waits for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                await asyncio.sleep(POLL)
