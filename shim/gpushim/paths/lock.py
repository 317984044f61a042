"""Locks that hold off other gpushim commands: files of who runs this alone, with a deadline.

What others can open they can lock for ever, so no lock is on a directory, or on a file that others may read.
Out of scope: which work wants a lock.
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

    Args:
        path: absolute, of its file, which is made where it is missing, and again where it is removed meanwhile.
        seconds: to wait for who holds it.

    Raises:
        GpushimError: it is still held, or others could hold it, or it cannot be made.
    """
    end = time.monotonic() + seconds
    while True:
        fd = _opened(path)
        try:
            if _taken(fd, path):
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


def is_held(path: str, known: bool = True) -> bool:
    """Say whether who locks a file lives: the kernel releases its lock when it ends, whatever happens.

    Args:
        path: of the file; of one that others could lock, it is no matter whether they do.
        known: what this user may not open is held by nobody.

    Raises:
        PermissionError: without `known`, this user may not open it.
    """
    try:
        fd = os.open(path, _LOOK)
    except OSError as error:
        if isinstance(error, PermissionError) and not known:
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
    """Say whether a file is one that nobody but root and this user can open, and so lock."""
    regular = status.st_mode & trust.FILE_TYPE == trust.REGULAR
    return regular and trust.trusted(status.st_uid) and not status.st_mode & 0o077


def _opened(path: str) -> int:
    folder = os.path.dirname(path)
    try:
        fd = os.open(path, _OPEN, 0o600)
    except OSError as error:
        raise GpushimError(f"the lock {path} cannot be made: {error.strerror}; check that path", FAILED) from None
    if not trust.ours(folder) or not private(os.fstat(fd)):
        os.close(fd)
        raise GpushimError(f"others could hold the lock {path}; remove it, and make {folder} root's alone", FAILED)
    return fd


def _taken(fd: int, path: str) -> bool:
    """Lock the file, unless somebody holds it or another is at its path by now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise GpushimError(f"the lock {path} cannot be held: {error.strerror}; check that path", FAILED) from None


def _holder(fd: int) -> str:
    """Name the process that has the lock, as the kernel says; what it calls itself is only shown."""
    inode = f":{os.fstat(fd).st_ino}"
    with contextlib.suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            words = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
            if words[1] == "FLOCK" and words[5].endswith(inode):
                with open(f"/proc/{int(words[4])}/cmdline", "rb") as name:
                    command = name.read(256).replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {words[4]} ({quote(command)})"
    return "another process"
