"""Compare and exchange: a file of others becomes another only if it still is what was read.

The new file is written whole under a name that tells what takes the place of what: .NAME.OLD.NEW.exchange, of their
hashes. Then the two change places in one step (RENAME_EXCHANGE of renameat2(2)), and what came out is looked at: it
goes if it is what was read; what somebody has written meanwhile goes back. As the name tells what its file may be,
a kill at any call loses nothing: `settle` ends what was begun.
Where a file system has no such step (some network and FUSE file systems), the last look comes right before a rename:
another's rename between the two is lost. Where the kernel lends no leases (leases(7)), one who has the file open, and
writes after the last look, is not noticed. Out of scope: mode, owner, attributes (cdi/generate/publish.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim.ground import bounds
from gpushim.paths import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COPY = ".kept-gpushim"
LIMIT = bounds.SPEC  # bytes that are read of a file, the largest of which is a CDI spec
_NOREPLACE, _EXCHANGE = 1, 2  # <linux/fs.h>
_WITHOUT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # the last: of a seccomp filter
_TIMES = 8  # that somebody else may be quicker before his file is laid aside
_NONE = "-"
_NAME = re.compile(r"\.(.+)\.([0-9a-f]{32}|-)\.([0-9a-f]{32}|-)\.exchange", re.DOTALL)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_PRIVATE = 0o600


class Changed(Exception):  # noqa: N818 - an answer, for the caller to word
    """The file is not what was read, or `is_open`: somebody may be writing it."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__("open for writing in another program" if is_open else "changed by somebody else meanwhile")
        self.is_open = is_open
        self.copies: list[str] = []  # names of copies of what somebody wrote


@dataclass(frozen=True)
class File:
    """A file of others.

    Attributes:
        name: in its directory.
        folder: fd of that, open for reading.
        scratch: fd of the directory for what is being written, open for reading.
        copy: its name there, which copies of it begin with.
    """

    name: str
    folder: int
    scratch: int
    copy: str


def put(file: File, old: bytes | None, new: bytes | None, finish: Callable[[int], object] | None = None) -> list[str]:
    """Make a file another one.

    Args:
        file: to be changed.
        old: what it must still hold; None if there must be no file.
        new: what it is to hold; None to remove it.
        finish: called with the new file's fd before it is in place.

    Returns:
        clauses about what went wrong once it was in place.

    Raises:
        Changed: somebody else has written meanwhile; it is as he wrote it.
        OSError: nothing has changed.
    """
    name = f".{file.copy}.{_hash(old)}.{_hash(new)}.exchange"
    try:
        if new is not None:
            replace.replace(name, new, _PRIVATE, folder=file.scratch, finish=finish)
        return _put(file, name, old, new)
    except (Changed, OSError) as error:
        copies: list[str] = []
        with contextlib.suppress(OSError):
            copies = _settle(file, name, new)
        if old != new and content(file.name, file.folder) == new:
            return [str(error), *(f"a change made meanwhile is saved in {copy}" for copy in copies)]
        if isinstance(error, Changed):
            error.copies = copies
        raise
    except BaseException:
        _settle(file, name, new)
        raise


def settle(file: File) -> list[str]:
    """End what a killed process has begun with a file; return the names of copies that were kept."""
    copies = []
    replace.sweep("", f".{file.copy}", file.scratch)
    for name in sorted(os.listdir(file.scratch)):
        parts = _NAME.fullmatch(name)
        if parts and parts[1] == file.copy:
            copies += _settle(file, name, parts[3], parts[2])
    return copies


def copy_aside(name: str, folder: int, source: str) -> str:
    """Rename a file to the first free name for a copy of the file `name`; returns that."""
    number = 1
    while True:
        copies = f"{name}{COPY}" + (f".{number}" if number > 1 else "")
        try:
            _move(source, folder, copies, folder)
            return copies
        except FileExistsError:
            number += 1


def content(name: str, folder: int) -> bytes | None:
    """Return what a file holds, None if there is none; for what is none, or too large, what no settings hold."""
    with contextlib.suppress(Changed, OSError), _opened(name, folder) as fd:
        data = _read(fd)
        if len(data) <= LIMIT:
            return data
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return f"\0{status.st_dev} {status.st_ino}".encode()


def _put(file: File, name: str, old: bytes | None, new: bytes | None) -> list[str]:
    try:
        if old is None:
            _move(name, file.scratch, file.name, file.folder)
        elif new is None:
            os.rename(file.name, name, src_dir_fd=file.folder, dst_dir_fd=file.scratch)
        elif not _exchange(file, name):
            return _without(file, name, old)
    except (FileExistsError, FileNotFoundError):
        raise Changed from None
    if old is not None:
        with _opened(name, file.scratch) as fd:
            _look(fd, old)
            _sync(file)
            _look(fd, old)
        os.unlink(name, dir_fd=file.scratch)
    _sync(file)
    return []


def _without(file: File, name: str, old: bytes) -> list[str]:
    """Replace a file where two cannot change places; what is written into it meanwhile is kept as a copy."""
    with _opened(file.name, file.folder) as fd:
        _look(fd, old)
        os.rename(name, file.name, src_dir_fd=file.scratch, dst_dir_fd=file.folder)
        _sync(file)
        try:
            _look(fd, old)
        except Changed as changed:
            if changed.is_open and _read(fd) == old:
                return ["another program has the file that it was open for writing; what that writes now is lost"]
            replace.replace(name, b"", _PRIVATE, folder=file.scratch, finish=lambda copy: _copied(fd, copy))
            return [f"a change made meanwhile is saved in {copy_aside(file.copy, file.scratch, name)}"]
    return []


def _settle(file: File, name: str, new: bytes | str | None, old: str = "") -> list[str]:
    """End one exchange: what is gpushim's, or was read, goes; what else came out goes back, or is kept as a copy."""
    mine, there = new if isinstance(new, str) else _hash(new), content(name, file.scratch)
    if there is None:
        return []
    if _hash(there) != mine and not (_hash(there) == old and _is_quiet(file, name, there)):
        now = content(file.name, file.folder)
        if now is None and mine == _NONE:
            _move(name, file.scratch, file.name, file.folder)
            return []
        if now is None or _hash(now) != mine or not _given_back(file, name, there, now):
            return [copy_aside(file.copy, file.scratch, name)]
    os.unlink(name, dir_fd=file.scratch)
    return []


def _given_back(file: File, name: str, theirs: bytes, mine: bytes) -> bool:
    """Exchange until what comes out is what was put there; return whether that is gpushim's, not somebody's."""
    put, inside = theirs, mine
    for _ in range(_TIMES):
        if not _exchange(file, name):
            return False
        came = content(name, file.scratch) or b""
        if came == inside:
            return inside == mine
        put, inside = came, put
    return False


def _is_quiet(file: File, name: str, there: bytes) -> bool:
    try:
        with _opened(name, file.scratch) as fd:
            _look(fd, there)
    except Changed:
        return False
    return True


def _look(fd: int, old: bytes) -> None:
    """Raise Changed if a file holds something else, or if somebody has it open to write."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # which nobody dies of, if somebody opens it just now
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        raise Changed(is_open=True) from None
    except OSError:  # no leases here, or not for this user
        pass
    if _read(fd) != old:
        raise Changed


def _exchange(file: File, name: str) -> bool:
    """Let two files change places; returns whether the file system can."""
    try:
        _rename(name, file.scratch, file.name, file.folder, _EXCHANGE)
    except OSError as error:
        if error.errno in _WITHOUT:
            return False
        raise
    return True


def _move(name: str, folder: int, other: str, into: int) -> None:
    """Rename a file; FileExistsError if there is one of that name."""
    try:
        _rename(name, folder, other, into, _NOREPLACE)
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
        if content(other, into) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=into)


def _rename(name: str, folder: int, other: str, into: int, flags: int) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS if call is None else 0
    if call and call(folder, os.fsencode(name), into, os.fsencode(other), flags):
        number = ctypes.get_errno()
    if number:
        raise OSError(number, os.strerror(number))


def _sync(file: File) -> None:
    """Let new names survive a power cut too."""
    os.fsync(file.scratch)
    os.fsync(file.folder)


@contextlib.contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError:  # it is a link now, say
        raise Changed from None
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    return os.pread(fd, LIMIT + 1, 0)


def _copied(fd: int, into: int) -> None:
    """Copy a file, whatever its size: it has no name any more by which it could be kept."""
    place = 0
    while data := os.pread(fd, LIMIT, place):
        place += len(data)
        while data:
            data = data[os.write(into, data) :]


def _hash(data: bytes | None) -> str:
    return _NONE if data is None else hashlib.sha256(data).hexdigest()[:32]
