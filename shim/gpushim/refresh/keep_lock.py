"""Whether somebody keeps the snapshot true: `gpushim refresh --keep` holds a lock as long as it runs.

The kernel releases it at the end of that process, and tells of it in whatever namespaces it runs, as in a pod.
Out of scope: keeping (keep.py), and the units that do it where a package is.
"""

from __future__ import annotations

import fcntl
import os

from gpushim.ground import system
from gpushim.paths import trust

NAME = "keeper"  # in the state directory
RECORD = f"{system.LASTING_DIR}/node.json"  # of what gpushim-node has laid down on this host, which then keeps it
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Lock:
    """The lock of one that keeps it.

    Args:
        state: gpushim's state directory, which may be removed and made again at any time.
    """

    def __init__(self, state: str) -> None:
        self._state, self._path = state, f"{state}/{NAME}"
        self._fd = -1

    def take(self) -> None:
        """See to it that it is held, as far as that can be: another may hold it, or there is no directory yet."""
        if self._fd >= 0:
            if _same(self._fd, self._path):
                return
            self.leave()
        if not trust.ours(self._state):
            return
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # doctor looks just now, another one runs, or the disk is full
            self.leave()

    def leave(self) -> None:
        """Hold it no more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def runs(state: str) -> bool:
    """Say whether somebody keeps the snapshot.

    Args:
        state: gpushim's state directory.

    Raises:
        PermissionError: this user may not know.
    """
    try:
        fd = os.open(f"{state}/{NAME}", os.O_RDONLY | _FLAGS)
    except PermissionError:
        raise
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False
