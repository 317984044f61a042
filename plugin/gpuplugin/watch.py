"""Directories watched through inotify(7), for asyncio.

Only a hint that something changed: who waits for one looks at all of it again, and every second anyway, since there
is no inotify on some file systems, and a host has only so many watches. Out of scope: what changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from gpushim.logs import logger

# inotify(7): a name came or went, was moved here or away; the directory itself went.
CHANGES = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800
ONLY_DIRECTORIES = 0x01000000
ABSENT = (2, 20)  # ENOENT, ENOTDIR
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
        if self.fd < 0:
            self._say("fs.inotify.max_user_instances", ctypes.get_errno())

    def add(self, *folders: str) -> None:
        """Watch directories too; one that is watched already, or is not there, changes nothing."""
        for folder in folders if self.fd >= 0 else ():
            if self._libc.inotify_add_watch(self.fd, os.fsencode(folder), CHANGES | ONLY_DIRECTORIES) < 0:
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

    def clear(self) -> None:
        """Forget what has been told."""
        with contextlib.suppress(OSError):
            while os.read(self.fd, 1 << 16):
                pass

    def close(self) -> None:
        """Watch nothing more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
