"""An inotify of which a user has used up all instances."""

from __future__ import annotations

import ctypes
import errno
from typing import Any


class Exhausted:
    """A C library on a host that has no more of something."""

    def __init__(self, instances: int) -> None:
        self._instances = instances

    def inotify_init1(self, _: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return self._instances

    def inotify_add_watch(self, *_: Any) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1
