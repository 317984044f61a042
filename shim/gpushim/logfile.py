"""Append lines to logs: to [log] file, and to the file of runc's --log. The hook and a create do it here.

Who may write into a log's directory could make its name lead to any file: a link, a second name, a device. So a log
is an ordinary file or FIFO of root's or of who runs this, under one name, in a directory that is root's or ours and
in which not everybody can replace it, as nobody can replace that directory, up to the root: in such a one as /tmp,
whose sticky bit is set, others cannot. A directory's group may write there, as syslog's does in Ubuntu's /var/log.

Out of scope: what a line says. Hot path: builtin modules only.
"""

from __future__ import annotations

import posix
import time

from gpushim.stamp import FILE_TYPE, REGULAR, trusted

MODE = 0o640  # of a new log: lines name containers, and who may read them is for the administrator to say
_FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
_FIFO, _LINK = 0o010000, 0o120000  # S_IFIFO, S_IFLNK: inode(7)
_OTHERS_WRITE, _STICKY = 0o002, 0o1000


def append(path: str, line: str) -> None:
    """Append a line; trouble with a log never harms a container.

    Args:
        path: of the log; "" for none.
        line: without its end; what is not ASCII is escaped.
    """
    if not path:
        return
    try:
        fd = _open(path)
    except (OSError, ValueError):
        return
    try:
        if _is_log(posix.fstat(fd)):
            posix.write(fd, line.encode("ascii", "backslashreplace") + b"\n")
    except OSError:
        pass
    finally:
        posix.close(fd)


def now() -> str:
    """Tell the time as RFC 3339 in UTC, as runc does in its log."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def refused(path: str) -> bool:
    """Say whether a log would not be written to for what it is, or for where it lies."""
    try:
        folder, name = _folder(path)
        try:
            return not _is_log(posix.stat(name, dir_fd=folder, follow_symlinks=False))
        finally:
            posix.close(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _open(path: str) -> int:
    folder, name = _folder(path)
    try:
        return posix.open(name, _FLAGS | posix.O_NOFOLLOW, MODE, dir_fd=folder)
    finally:
        posix.close(folder)


def _folder(path: str) -> tuple[int, str]:
    """Open the directory of a log, and return the name in it."""
    above, slash, name = path.rpartition("/")
    words = above.split("/")
    for count in range(1, len(words)):  # a link on the way is not followed here: who can make one is looked at
        _check_folder(posix.lstat("/".join(words[:count]) or "/"))
    folder = posix.open(above or slash or ".", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        _check_folder(posix.lstat(above or slash or "."))
        _check_folder(posix.fstat(folder))
    except OSError:
        posix.close(folder)
        raise
    return folder, name


def _check_folder(facts: posix.stat_result) -> None:
    writable = facts.st_mode & FILE_TYPE != _LINK and facts.st_mode & (_OTHERS_WRITE | _STICKY) == _OTHERS_WRITE
    if not trusted(facts.st_uid) or writable:
        raise PermissionError


def _is_log(facts: posix.stat_result) -> bool:
    kind = facts.st_mode & FILE_TYPE
    return trusted(facts.st_uid) and (kind == _FIFO or (kind == REGULAR and facts.st_nlink == 1))
