"""Append lines to logs: [log] file, and the file of runc's --log.

A user who can write to a log's directory could make its name lead to any file: by a link, a hard link, a device. So a
log is a regular file or FIFO of root or this user without a second name, and the same users own its directory, all
above and the links to them. None of these directories may be writable for everybody unless its sticky bit is set, as
/tmp's; its group may write to it, as syslog's may to Ubuntu's /var/log. Hot path: builtin modules only.
"""

from __future__ import annotations

import posix
import time

from gpushim.paths.trust import trusted
from gpushim.paths.walk import FIFO, LINK, REGULAR, TYPE, walk_from

MODE = 0o640  # of a new log: its lines name containers, so the administrator decides who may read it
_FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
_OTHERS_WRITE, _STICKY = 0o002, 0o1000


def append(path: str, line: str) -> None:
    """Append a line without its end to a log ("" for none); no error is raised."""
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
    """Return the time as RFC 3339 in UTC, as in runc's log."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def refused(path: str) -> bool:
    """Return whether a log would not be written to for its kind, its owner or its directory."""
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
    above, _, name = path.rpartition("/")
    if path[:1] != "/":
        above = f"{posix.getcwd()}/{above}"
    return walk_from("/", above + "/", _check), name


def _check(_fd: int, facts: posix.stat_result, _words: int) -> None:
    writable = facts.st_mode & TYPE != LINK and facts.st_mode & (_OTHERS_WRITE | _STICKY) == _OTHERS_WRITE
    if not trusted(facts.st_uid) or writable:
        raise PermissionError


def _is_log(facts: posix.stat_result) -> bool:
    kind = facts.st_mode & TYPE
    return trusted(facts.st_uid) and (kind == FIFO or (kind == REGULAR and facts.st_nlink == 1))
