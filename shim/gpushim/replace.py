"""Put a file in place so that a reader sees the old one or the whole new one, whoever else does the same meanwhile.

All files that gpushim replaces go through here, but for config.json (bundle.py) and what is below a rootfs
(gpuhook/rootfs.py): these are on the hot path, where to import this module would cost more than to write the file.
Out of scope: whether the directory can be trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MODE = 0o644
SUFFIX = ".new"
RANDOM = 8  # bytes of a name
_OLD = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(
    path: str,
    data: bytes,
    mode: int = MODE,
    time: int | None = None,
    folder: int | None = None,
    into: int | None = None,
    finish: Callable[[int], object] | None = None,
) -> None:
    """Write a file under a name of its own, and rename it to the one that it replaces.

    Args:
        path: of the file; in `folder`, its name.
        data: to be in it.
        mode: of it.
        time: to be its mtime, in nanoseconds.
        folder: fd of the directory to write it in, open for reading; None if the path says it.
        into: fd of the directory that it goes to; None if that is the same.
        finish: called with its fd before it is renamed, to give it more than a mode.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    top, name = os.path.split(path)
    sweep(top, name, folder)
    fresh, fd = _made(top, name, folder)
    try:
        with open(fd, "wb") as file:  # and the lock is gone with it, behind the rename
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            if time is not None:
                os.utime(fd, ns=(time, time))
            if finish:
                finish(fd)
            os.fsync(fd)
            os.rename(fresh, path, src_dir_fd=folder, dst_dir_fd=folder if into is None else into)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # the whole directory was removed
            os.unlink(fresh, dir_fd=folder)
        raise


def _made(top: str, name: str, folder: int | None) -> tuple[str, int]:
    """Make a new file, and lock it: who sweeps knows by that that it is in use, in whatever PID namespace."""
    while True:
        # Begins with a dot and ends with neither .json nor .yaml: engines take no such file for a spec.
        fresh = os.path.join(top, f".{name}.{os.urandom(RANDOM).hex()}{SUFFIX}")
        fd = os.open(fresh, _NEW, 0o600, dir_fd=folder)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # nobody has swept it away before it was locked
            return fresh, fd
        os.close(fd)


def sweep(top: str, name: str, folder: int | None) -> None:
    """Remove what processes that were killed have left of `replace`.

    Args:
        top: path of the directory; "" where `folder` says it.
        name: of the file; those whose names go on after a dot are meant too.
        folder: fd of the directory, open for reading; None if `top` says it.
    """
    for other in os.listdir(top if folder is None else folder):
        stem, _, random = other[: -len(SUFFIX)].rpartition(".")
        ours = other.endswith(SUFFIX) and len(random) == 2 * RANDOM and not random.strip("0123456789abcdef")
        if ours and f"{stem}.".startswith(f".{name}."):
            path = os.path.join(top, other)
            with contextlib.suppress(OSError):  # in use, or gone
                fd = os.open(path, _OLD, dir_fd=folder)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path, dir_fd=folder)
                finally:
                    os.close(fd)
