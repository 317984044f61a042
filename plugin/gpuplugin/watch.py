"""Directories watched through inotify(7), for asyncio.

Only a hint that something changed: who waits for one looks at all of it again, and every second anyway, since there
is no inotify on some file systems. Out of scope: what changed.
"""

from __future__ import annotations

import ctypes
import os

# inotify(7): a name came or went, was moved here or away; the directory itself went.
CHANGES = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800
ONLY_DIRECTORIES = 0x01000000
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


class Watch:
    """An inotify descriptor, and the directories that it watches now.

    Attributes:
        fd: becomes readable with each change; -1 where there is no inotify.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(_FLAGS)

    def add(self, *folders: str) -> None:
        """Watch directories too; one that is watched already, or is not there, changes nothing."""
        for folder in folders:
            self._libc.inotify_add_watch(self.fd, os.fsencode(folder), CHANGES | ONLY_DIRECTORIES)

    def clear(self) -> None:
        """Forget what has been told."""
        try:
            while os.read(self.fd, 1 << 16):
                pass
        except OSError:
            pass
