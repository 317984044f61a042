"""Directories watched through inotify(7), for asyncio.

Only a hint that something changed: the waiter looks at all of it again, and now and then anyway; every second where
a directory is not watched, since there is no inotify on some file systems, and a host has only so many watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from typing import TYPE_CHECKING

from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

# inotify(7): a name came or went, was moved here or away; the directory itself went.
CHANGES = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800
WRITTEN = 0x8  # a file was closed that had been opened for writing
ONLY_DIRECTORIES, AND_OTHERS = 0x01000000, 0x20000000  # the last: besides what a directory is watched for already
IGNORED = 0x8000  # the watch is over
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
        self._warned = self._begun = False
        self._folders: dict[int, str] = {}  # by watch
        self._watched: set[str] = set()  # that were there when they were to be watched last
        if self.fd < 0:
            self._warn("fs.inotify.max_user_instances", ctypes.get_errno())

    def begin(self, changed: Callable[[], object]) -> None:
        """Call a function in the loop with each change, which it reads by `changed`."""
        if self.fd >= 0:
            asyncio.get_running_loop().add_reader(self.fd, changed)
            self._begun = True

    def add(self, *folders: str, written: bool = False) -> bool:
        """Watch directories too, with `written` also for files that are written where they are.

        Returns:
            whether one was not watched before: nothing told what came there until now.
        """
        mask, is_new = CHANGES | ONLY_DIRECTORIES | AND_OTHERS | WRITTEN * written, False
        for folder in folders if self.fd >= 0 else ():
            watched = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), mask)
            if watched >= 0:
                is_new = is_new or watched not in self._folders
                self._folders[watched] = folder
                self._watched.add(folder)
            else:
                self._watched.discard(folder)
                error = ctypes.get_errno()
                if error not in ABSENT:
                    self._warn("fs.inotify.max_user_watches", error)
        return is_new

    def tells(self, folder: str) -> bool:
        """Return whether a directory is watched: it was there when `add` was called with it last."""
        return folder in self._watched

    def _warn(self, setting: str, error: int) -> None:
        if not self._warned:
            logger.warning(
                "inotify cannot be used (%s), so changes are noticed up to a second later; raise %s with sysctl",
                os.strerror(error),
                setting,
            )
        self._warned = True

    def changed(self) -> set[str]:
        """Return the paths that came or went since the last time."""
        paths = set()
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 1 << 16):
                offset = 0
                while offset < len(data):
                    watched, mask, _, length = EVENT.unpack_from(data, offset)
                    name = data[offset + EVENT.size : offset + EVENT.size + length].rstrip(b"\0")
                    paths.add(f"{self._folders.get(watched, '')}/{os.fsdecode(name)}")
                    if mask & IGNORED:
                        self._watched.discard(self._folders.pop(watched, ""))
                    offset += EVENT.size + length
        return paths

    def close(self) -> None:
        if self.fd >= 0:
            if self._begun:
                asyncio.get_running_loop().remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
