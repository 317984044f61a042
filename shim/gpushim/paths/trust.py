"""Whom this process trusts: files and directories that root or its own user alone can change.

On the create path: imports only `posix`.
"""

from __future__ import annotations

import posix

from gpushim.ground import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.ground.model import Identity

DIRECTORY, REGULAR, LINK, SOCKET = 0o040000, 0o100000, 0o120000, 0o140000  # S_IFDIR, S_IFREG, S_IFLNK, S_IFSOCK
FILE_TYPE = 0o170000  # S_IFMT
OTHERS_WRITE = 0o022  # S_IWGRP | S_IWOTH
_OVERFLOW = 65534  # /proc/sys/kernel/overflowuid, which nobody changes


def trusted(uid: int) -> bool:
    """Return whether a file's owner is root or this user.

    In a user namespace the host's root appears as the overflow user (user_namespaces(7)), as do all users without a
    mapping; but there this process has no more power than its user.
    """
    return uid in (0, posix.geteuid()) or (uid == _OVERFLOW and in_user_namespace())


def others_may(status: posix.stat_result) -> bool:
    """Return whether another user than root and this one owns a file or directory, or may write to it."""
    return not trusted(status.st_uid) or status.st_mode & OTHERS_WRITE != 0


def ours(folder: str) -> bool:
    """Return whether only root and this user can write to a directory.

    A link to it counts if root of this namespace or this user made it: where rootlesskit starts an engine, all names
    in /run are links of that root's, which is this user. A link of the overflow user may be anybody's, and one with
    two names may have been put there by another user. It is followed once, through directories that only root and
    this user can write to.
    """
    try:
        status = posix.lstat(folder)
        if status.st_mode & FILE_TYPE != LINK:
            return _is_directory_ours(status)
        if status.st_uid not in (0, posix.geteuid()) or status.st_nlink != 1:
            return False
        path = posix.readlink(folder)
        directory = "" if path.startswith("/") else folder.rpartition("/")[0]
        for name in filter(None, path.split("/")):
            directory += "/" + name
            if not _is_directory_ours(posix.lstat(directory)):
                return False
    except OSError:
        return False
    return True


def _is_directory_ours(status: posix.stat_result) -> bool:
    return status.st_mode & FILE_TYPE == DIRECTORY and not others_may(status)


def in_user_namespace() -> bool:
    id_map = system.text("/proc/self/uid_map", 256)
    return id_map is not None and id_map.split() != ["0", "0", "4294967295"]


def identity(path: str) -> Identity | None:
    """Return the facts that tell a file from its replacement or a changed one; None if there is no such name.

    Returns:
        device, inode, mtime (ns), size and ctime (ns), which also changes with mode and owner, by which the file is
        trusted. They are the link's own if it is dangling, and five times the errno if the file cannot be seen.
    """
    try:
        status = posix.lstat(path)
        if status.st_mode & FILE_TYPE == LINK:
            try:
                status = posix.stat(path)
            except FileNotFoundError:
                pass
    except FileNotFoundError:
        return None
    except OSError as error:
        return [error.errno or 0] * 5
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns]
