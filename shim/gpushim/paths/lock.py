"""Locks against other gpushim commands, with a deadline: files that only root and this user can open.

A file or directory that others can open they can lock for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 30.0  # what is done under such a lock takes less than one
_PAUSE = 0.005
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def held(path: str, seconds: float = SECONDS) -> Iterator[None]:
    """Hold a lock in the body.

    The file is made where it is missing, and again where it is removed meanwhile.

    Raises:
        GpushimError: it is held for longer than `seconds`, others could hold it, or it cannot be made.
    """
    end = time.monotonic() + seconds
    while True:
        fd = _open_lock(path)
        try:
            if _take(fd, path):
                yield
                return
            if time.monotonic() > end:
                raise GpushimError(
                    f"{path} is held by {_holder(fd)} for more than {seconds:g} seconds; see what that does, or end "
                    "it, then do this again",
                    FAILED,
                )
        finally:
            os.close(fd)
        time.sleep(_PAUSE)


def is_held(path: str, unreadable_is_free: bool = True) -> bool:
    """Return whether a process holds a lock, which the kernel releases when that ends.

    A file that others could lock counts as free. So does one that this user may not open, unless not
    `unreadable_is_free`.

    Raises:
        PermissionError: this user may not open it.
    """
    try:
        fd = os.open(path, _LOOK)
    except OSError as error:
        if isinstance(error, PermissionError) and not unreadable_is_free:
            raise
        return False
    try:
        if not private(os.fstat(fd)):
            return False
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def private(status: os.stat_result) -> bool:
    """Return whether only root and this user can open a file, and so lock it."""
    regular = status.st_mode & trust.FILE_TYPE == trust.REGULAR
    return regular and trust.trusted(status.st_uid) and not status.st_mode & 0o077


def _open_lock(path: str) -> int:
    folder = os.path.dirname(path)
    try:
        fd = os.open(path, _OPEN, 0o600)
    except OSError as error:
        raise GpushimError(f"the lock {path} cannot be made: {error.strerror}; check that path", FAILED) from None
    if not trust.ours(folder) or not private(os.fstat(fd)):
        os.close(fd)
        raise GpushimError(f"others could hold the lock {path}; remove it, and make {folder} root's alone", FAILED)
    return fd


def _take(fd: int, path: str) -> bool:
    """Lock the file; return False if it is locked, or no longer the one at its path."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise GpushimError(f"the lock {path} cannot be held: {error.strerror}; check that path", FAILED) from None


def _holder(fd: int) -> str:
    """Return the process that has the lock, by the kernel's list; its own name is only shown."""
    inode = f":{os.fstat(fd).st_ino}"
    with contextlib.suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            words = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
            if words[1] == "FLOCK" and words[5].endswith(inode):
                with open(f"/proc/{int(words[4])}/cmdline", "rb") as name:
                    command = name.read(256).replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {words[4]} ({quote(command)})"
    return "another process"
