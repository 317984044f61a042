"""Replace a file atomically: a reader sees the old or the whole new one, even with several writers.

All files that gpushim replaces go through here, except config.json (bundle.py) and those below a rootfs
(gpushim/paths/rootfs.py): on the hot path importing this module would cost more than writing the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
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
    finish: Callable[[int], object] | None = None,
    durable: bool = True,
) -> None:
    """Write a file under a temporary name, and rename it to its path; on OSError the old file stays.

    Args:
        path: of the file; in `folder`, its name.
        time: its mtime in nanoseconds.
        folder: fd of its directory, open for reading, if the path is only a name.
        finish: called with the new file's fd before the rename.
        durable: wait for the disk, so that it outlives a loss of power.
    """
    top, name = os.path.split(path)
    sweep(top, name, folder)
    fresh, fd = _make_temporary(top, name, folder)
    try:
        with open(fd, "wb") as file:  # closing it, after the rename, releases the lock
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            if time is not None:
                os.utime(fd, ns=(time, time))
            if finish:
                finish(fd)
            if durable:
                os.fsync(fd)
            os.rename(fresh, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # the whole directory was removed
            os.unlink(fresh, dir_fd=folder)
        raise


def content(path: str, limit: int = -1) -> bytes | None:
    """Return the first `limit` bytes of a regular file (-1: all); None for a link, or if it cannot be read."""
    try:
        with open(path, "rb", opener=lambda path, _: os.open(path, _OLD)) as file:
            return file.read(limit) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None


def _make_temporary(top: str, name: str, folder: int | None) -> tuple[str, int]:
    """Make and lock a new file: the lock tells `sweep`, in any PID namespace, that it is in use."""
    while True:
        # With a leading dot, and neither .json nor .yaml at the end: engines take it for no spec.
        fresh = os.path.join(top, f".{name}.{os.urandom(RANDOM).hex()}{SUFFIX}")
        fd = os.open(fresh, _NEW, 0o600, dir_fd=folder)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # not swept away before it was locked
            return fresh, fd
        os.close(fd)


def sweep(top: str, name: str, folder: int | None) -> None:
    """Remove the temporary files of killed processes, also for names that continue after a dot.

    The directory is given as a path, or as a fd with "" as the path.
    """
    for file in os.listdir(top if folder is None else folder):
        stem, _, random = file[: -len(SUFFIX)].rpartition(".")
        is_temporary = file.endswith(SUFFIX) and len(random) == 2 * RANDOM and not random.strip("0123456789abcdef")
        if is_temporary and f"{stem}.".startswith(f".{name}."):
            path = os.path.join(top, file)
            with contextlib.suppress(OSError):  # in use, or gone
                fd = os.open(path, _OLD, dir_fd=folder)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path, dir_fd=folder)
                finally:
                    os.close(fd)
