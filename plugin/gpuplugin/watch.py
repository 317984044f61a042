"""Directories watched through inotify(7), for asyncio.

Only a hint that something changed: who waits for one looks at all of it again, and every second anyway, since there
is no inotify on some file systems, and a host has only so many watches. Out of scope: what follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

from gpushim.logs import logger

# inotify(7): a name came or went, was moved here or away; the directory itself went.
CHANGES = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800
WRITTEN = 0x8  # a file was closed that had been opened for writing
ONLY_DIRECTORIES, AND_OTHERS = 0x01000000, 0x20000000  # the last: besides what a directory is watched for already
ABSENT = (2, 20)  # ENOENT, ENOTDIR
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


class Watch:
    """An inotify descriptor, and the directories that it watches now.

    Attributes:
        fd: becomes readable with each change; -1 where there is no inotify, or no more of it.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(_FLAGS)
        self._said = False
        self._folders: dict[int, str] = {}  # by watch
        if self.fd < 0:
            self._say("fs.inotify.max_user_instances", ctypes.get_errno())

    def add(self, *folders: str, written: bool = False) -> None:
        """Watch directories too; one that is watched already, or is not there, changes nothing.

        Args:
            folders: paths.
            written: whether a file in them that is written where it is counts, too.
        """
        mask = CHANGES | ONLY_DIRECTORIES | AND_OTHERS | WRITTEN * written
        for folder in folders if self.fd >= 0 else ():
            watched = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), mask)
            if watched >= 0:
                self._folders[watched] = folder
            else:
                error = ctypes.get_errno()
                if error not in ABSENT:
                    self._say("fs.inotify.max_user_watches", error)

    def _say(self, setting: str, error: int) -> None:
        if not self._said:
            logger.warning(
                "inotify cannot be used (%s), so changes are noticed up to a second later; raise %s with sysctl",
                os.strerror(error),
                setting,
            )
        self._said = True

    def told(self) -> set[str]:
        """Return the paths that came or went since the last time."""
        found = set()
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 1 << 16):
                place = 0
                while place < len(data):
                    watched, _, _, length = EVENT.unpack_from(data, place)
                    name = data[place + EVENT.size : place + EVENT.size + length].rstrip(b"\0")
                    found.add(f"{self._folders.get(watched, '')}/{os.fsdecode(name)}")
                    place += EVENT.size + length
        return found

    def close(self) -> None:
        """Watch nothing more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
