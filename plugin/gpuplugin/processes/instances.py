"""Whether another instance of this plugin runs on the node, as during a rolling update, in whatever namespaces.

Each locks one byte of a file for itself, and one for each resource that it serves; the kernel releases them at its
end (fcntl(2), open file description locks).
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib

from gpushim.ground.logs import logger

NAME = "instances"  # in the directory of what the plugin keeps
METRICS = "metrics"  # is served as a resource is
NAMES = 1 << 48  # below are the bytes of instances, above those of resources
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Instances:
    """The instances, of which this is one as soon as it has joined.

    Attributes:
        number: of this one: the byte that it locks. Those before there was a record lock all bytes.
    """

    def __init__(self) -> None:
        self._fd = -1
        self.number = int.from_bytes(os.urandom(6), "big")

    def join(self, folder: str, name: str = NAME) -> None:
        """Become one of them, once; without a file to lock this one takes itself for the only one.

        Args:
            folder: directory of what the plugin keeps, root's alone.
            name: of the file, another for each program.
        """
        if self._fd >= 0:
            return
        try:
            self._fd = os.open(f"{folder}/{name}", _OPEN, 0o600)
            self._lock(fcntl.F_RDLCK, self.number)
        except OSError as error:
            logger.warning("%s/%s cannot be locked: %s", folder, name, error.strerror)
            self.leave()

    def serve(self, resource: str) -> None:
        if self._fd >= 0:
            self._lock(fcntl.F_RDLCK, _byte(resource))

    def cease(self, resource: str) -> None:
        """Unlock the byte of a resource that this one serves no more."""
        if self._fd >= 0:
            self._lock(fcntl.F_UNLCK, _byte(resource))

    def others(self, resource: str = "") -> bool:
        """Return whether there is another one now, that serves this resource if one is named."""
        return self._is_locked(_byte(resource), 1) if resource else self._is_locked(0, 0)

    def lives(self, number: int) -> bool:
        """Return whether the one with this number is another one, and there now."""
        return number != self.number and self._is_locked(number, 1)

    def _lock(self, kind: int, byte: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))

    def _is_locked(self, start: int, length: int) -> bool:
        if self._fd < 0:
            return False
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, request)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def anyone(folder: str, resource: str = "", name: str = NAME) -> bool:
    """Return whether there is an instance now, that serves this resource if one is named; for who is none of them."""
    observer = Instances()
    try:
        observer._fd = os.open(f"{folder}/{name}", _LOOK)
        return observer.others(resource)
    except OSError:
        return False
    finally:
        observer.leave()


def _byte(resource: str) -> int:
    return NAMES + zlib.crc32(resource.encode())
