"""Ask programs and daemons, each within a deadline.

Out of scope: what the answers mean.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from subprocess import PIPE
from typing import TYPE_CHECKING

from gpushim.config.policy import SYSTEM_PATH

if TYPE_CHECKING:
    from typing import IO

SECONDS = 10.0
# Names that a client of an engine needs to find its user's files; nothing else of the environment is handed on.
HANDED_ON = (
    *("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
    *("GPUSHIM_CONFIG", "GPUSHIM_STATE"),
)


@dataclass(frozen=True)
class Answer:
    """How a program ended, and what it printed.

    Attributes:
        code: its exit code; None if it could not be started, or did not end in time.
        error: its stderr, or why there is no code.
    """

    code: int | None
    out: str
    error: str

    @property
    def last(self) -> str:
        """The last line of what it complains about."""
        lines = (self.error.strip() or self.out.strip()).splitlines()
        return lines[-1][:300] if lines else f"code {self.code}"


def program(
    argv: list[str],
    seconds: float = SECONDS,
    feed: IO[bytes] | bytes | None = None,
    *,
    executable: str = "",
    whole: bool = False,
    more: dict[str, str] | None = None,
) -> Answer:
    """Run a program.

    Args:
        argv: its absolute path and its arguments.
        seconds: how long it may take; then it is killed with all that it started.
        feed: its stdin; empty by default.
        executable: its absolute path, where argv[0] is another name.
        whole: hand on the whole environment, which tells a client of an engine whom to ask.
        more: variables of its environment.
    """
    names = os.environ if whole else [name for name in HANDED_ON if name in os.environ]
    variables = {name: os.environ[name] for name in names}
    data = feed if isinstance(feed, bytes) else None
    stdin = PIPE if isinstance(feed, bytes) else feed or subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            argv,
            executable=executable or None,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            env={"PATH": SYSTEM_PATH, **variables, "LC_ALL": "C.UTF-8", **(more or {})},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return Answer(None, "", f"{argv[0]} cannot be started: {error.strerror}")
    try:
        out, err = child.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return Answer(None, "", f"`{' '.join(argv)[:200]}` has not ended within {seconds:g} s")
    return Answer(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def listens(path: str) -> bool:
    """Return whether somebody listens on a UNIX socket."""
    with contextlib.suppress(OSError):
        fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # by way of the descriptor: a socket's address has room for 107 bytes only
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(SECONDS)
                client.connect(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
                return True
        finally:
            os.close(fd)
    return False


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it started; one that the kernel holds (state D) is left behind."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdout, child.stderr):
        if stream:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)
