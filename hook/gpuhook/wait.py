"""Do a hook's work in a child of the create (gpushim.create.ahead), when the hook's shell asks for it.

The shell writes its pid into our descriptor 0, and reads from 1 what it is to do: `begun`, lines for its stderr, and
`exit CODE`. Without `begun` it does the work another way.

We end after the low-level runtime, our parent: crun waits for a SIGCHLD of the hook, and of two at once the kernel
makes one, so that it would wait in vain until the hook's timeout.

Out of scope: the work, and its limits, which are the hook's (prestart.py).
"""

from __future__ import annotations

import _signal
import posix

from gpuhook.loader.finish import may_run
from gpushim.ground import bounds
from gpushim.ground.errors import FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

TICK = 0.02  # seconds between looks for the low-level runtime
MOST, LAST = 6000, 250  # looks: a hook has 60 s; afterwards somebody may wait for all children before it ends


class Shell:
    """The shell that has asked: its stdin and stderr are ours from now on.

    The process ends with the low-level runtime, where the shell cannot be reached, and by itself at last.

    Args:
        argv: `wait`, the pid of the low-level runtime, as which the create goes on, and the hook's own words.
    """

    def __init__(self, argv: list[str]) -> None:
        self.parent, self.argv, self.ticks = argv[1], argv[2:], MOST
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())  # the engine's may block it
        _signal.signal(_signal.SIGALRM, lambda *_: self._look())
        _signal.setitimer(_signal.ITIMER_REAL, TICK, TICK)
        values = [value for option, value in zip(self.argv, self.argv[1:]) if option == "--socket"]
        services = any(may_run(value.partition("::")[0]) for value in values)
        if "--cover" in self.argv or services:
            from gpuhook.inject import mounts  # noqa: F401 - while the low-level runtime works
        if services:
            from gpuhook.inject import service_sockets  # noqa: F401 - as above
        try:
            shell = int(posix.read(0, 32))
            self._look()  # what has asked may be of another low-level runtime
            state = posix.open(f"/proc/{shell}/fd/5", posix.O_RDONLY | posix.O_CLOEXEC)
        except (OSError, ValueError):
            posix._exit(FAILED)
        posix.dup2(state, 0)
        posix.close(state)
        posix.dup2(1, 2)
        self.ticks = MOST
        posix.write(1, b"begun\n")

    def _look(self) -> None:
        self.ticks -= 1
        if str(posix.getppid()) != self.parent or self.ticks < 0:
            posix._exit(FAILED)

    def end(self, code: int) -> NoReturn:
        """End the shell, with nothing of the container open, and wait for the low-level runtime's end."""
        posix.closerange(3, bounds.HOOK_OPEN)
        posix.close(0)
        posix.write(1, b"exit %d\n" % code)
        self.ticks = LAST
        while True:
            _signal.pause()
