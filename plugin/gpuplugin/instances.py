"""Whether another instance of this plugin runs on the node, as during a rolling update, in whatever namespaces.

Each holds a lock on one file, which the kernel releases at its end (fcntl(2), open file description locks).
Out of scope: what the instances do about each other (endpoint.py).
"""

from __future__ import annotations

import fcntl
import os
import struct

from gpushim.logs import logger

NAME = "instances"  # in the directory of what the plugin keeps
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Instances:
    """All of them, of which this is one as soon as it has joined."""

    def __init__(self) -> None:
        self._fd = -1

    def join(self, folder: str) -> None:
        """Become one of them; without a file to lock this one takes itself for the only one.

        Args:
            folder: directory of what the plugin keeps, root's alone.
        """
        try:
            self._fd = os.open(f"{folder}/{NAME}", _OPEN, 0o600)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            logger.warning("%s/%s cannot be locked: %s", folder, NAME, error.strerror)
            self.leave()

    def others(self) -> bool:
        """Say whether there is another one now."""
        if self._fd < 0:
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def leave(self) -> None:
        """Be none of them any more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
