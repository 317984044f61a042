"""Compare and swap: replace a file that others write, too, only if it still is what was read.

The new file is written whole under a name with the hashes of both contents: .NAME.OLD.NEW.exchange. Then the two
are exchanged in one step (RENAME_EXCHANGE of renameat2(2)), and the file that came out is compared: it is removed if
it is what was read, and exchanged back if somebody has written it meanwhile. As the name tells which contents are
expected, a kill at any call loses nothing: `recover` finishes the exchange.
On a file system without RENAME_EXCHANGE (some network and FUSE file systems), the comparison comes right before a
rename, and somebody else's rename between the two is lost. Without leases (leases(7)), a program that has the file
open, and writes after the last comparison, is not noticed. Out of scope: mode, owner, attributes
(cdi/generate/publish.py).
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
LIMIT = bounds.SPEC  # bytes that are read of a file; the largest file is a CDI spec
_NOREPLACE, _EXCHANGE = 1, 2  # <linux/fs.h>
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # EPERM: from a seccomp filter
_ATTEMPTS = 8  # exchanges with another writer, before his file is kept as a copy
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
        copy: its name there, with which names of copies begin.
    """

    name: str
    folder: int
    scratch: int
    copy: str


def compare_and_swap(
    file: File, old: bytes | None, new: bytes | None, finish: Callable[[int], object] | None = None
) -> list[str]:
    """Replace a file's content, or create or remove the file.

    Args:
        old: what it must still hold; None if there must be no file.
        new: what it is to hold; None to remove it.
        finish: called with the new file's fd before it is in place.

    Returns:
        clauses about what failed after the file was replaced.

    Raises:
        Changed: somebody else has written the file meanwhile; his content stays.
        OSError: nothing has changed.
    """
    name = f".{file.copy}.{_hash(old)}.{_hash(new)}.exchange"
    try:
        if new is not None:
            replace.replace(name, new, _PRIVATE, folder=file.scratch, finish=finish)
        return _swap_in(file, name, old, new)
    except (Changed, OSError) as error:
        copies: list[str] = []
        with contextlib.suppress(OSError):
            copies = _finish_exchange(file, name, new)
        if old != new and read_content(file.name, file.folder) == new:
            return [str(error), *(f"a change made meanwhile is saved in {copy}" for copy in copies)]
        if isinstance(error, Changed):
            error.copies = copies
        raise
    except BaseException:
        _finish_exchange(file, name, new)
        raise


def recover(file: File) -> list[str]:
    """Finish the exchanges that a killed process has begun; return the names of copies that were kept."""
    copies = []
    replace.sweep("", f".{file.copy}", file.scratch)
    for name in sorted(os.listdir(file.scratch)):
        parts = _NAME.fullmatch(name)
        if parts and parts[1] == file.copy:
            copies += _finish_exchange(file, name, parts[3], parts[2])
    return copies


def rename_to_copy(name: str, folder: int, source: str) -> str:
    """Rename a file to the first free name for a copy of the file `name`; return that name."""
    number = 1
    while True:
        copy = f"{name}{COPY}" + (f".{number}" if number > 1 else "")
        try:
            _rename_noreplace(source, folder, copy, folder)
            return copy
        except FileExistsError:
            number += 1


def read_content(name: str, folder: int) -> bytes | None:
    """Return a file's content, None if it is absent; bytes that equal no content if it is too large or unreadable."""
    with contextlib.suppress(Changed, OSError), _open(name, folder) as fd:
        data = _read(fd)
        if len(data) <= LIMIT:
            return data
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return f"\0{status.st_dev} {status.st_ino}".encode()


def _swap_in(file: File, name: str, old: bytes | None, new: bytes | None) -> list[str]:
    try:
        if old is None:
            _rename_noreplace(name, file.scratch, file.name, file.folder)
        elif new is None:
            os.rename(file.name, name, src_dir_fd=file.folder, dst_dir_fd=file.scratch)
        elif not _exchange(file, name):
            return _replace_without_exchange(file, name, old)
    except (FileExistsError, FileNotFoundError):
        raise Changed from None
    if old is not None:
        with _open(name, file.scratch) as fd:
            _check_unchanged(fd, old)
            _sync(file)
            _check_unchanged(fd, old)
        os.unlink(name, dir_fd=file.scratch)
    _sync(file)
    return []


def _replace_without_exchange(file: File, name: str, old: bytes) -> list[str]:
    """Replace a file without an exchange; what is written into it meanwhile is kept as a copy."""
    with _open(file.name, file.folder) as fd:
        _check_unchanged(fd, old)
        os.rename(name, file.name, src_dir_fd=file.scratch, dst_dir_fd=file.folder)
        _sync(file)
        try:
            _check_unchanged(fd, old)
        except Changed as changed:
            if changed.is_open and _read(fd) == old:
                return ["another program has the file that it was open for writing; what that writes now is lost"]
            replace.replace(name, b"", _PRIVATE, folder=file.scratch, finish=lambda copy: _copy_content(fd, copy))
            return [f"a change made meanwhile is saved in {rename_to_copy(file.copy, file.scratch, name)}"]
    return []


def _finish_exchange(file: File, name: str, new: bytes | str | None, old: str = "") -> list[str]:
    """Remove the scratch file of an exchange if it is expected, else restore it, or keep it as a copy.

    Args:
        name: of the scratch file.
        new: what gpushim writes, or its hash.
        old: hash of what was read.

    Returns:
        the copy's name, if there is one.
    """
    new_hash, scratch = new if isinstance(new, str) else _hash(new), read_content(name, file.scratch)
    if scratch is None:
        return []
    if _hash(scratch) == new_hash or (_hash(scratch) == old and _is_quiet(file, name, scratch)):
        os.unlink(name, dir_fd=file.scratch)
        return []
    current = read_content(file.name, file.folder)
    if current is None and new_hash == _NONE:
        _rename_noreplace(name, file.scratch, file.name, file.folder)
    elif current is not None and _hash(current) == new_hash and _exchange_back(file, name, scratch, current):
        os.unlink(name, dir_fd=file.scratch)
    else:
        return [rename_to_copy(file.copy, file.scratch, name)]
    return []


def _exchange_back(file: File, name: str, content: bytes, own: bytes) -> bool:
    """Exchange until the file that comes out is the one put in before; return whether it is gpushim's own."""
    restored, expected = content, own
    for _ in range(_ATTEMPTS):
        if not _exchange(file, name):
            return False
        displaced = read_content(name, file.scratch) or b""
        if displaced == expected:
            return expected == own
        restored, expected = displaced, restored
    return False


def _is_quiet(file: File, name: str, content: bytes) -> bool:
    try:
        with _open(name, file.scratch) as fd:
            _check_unchanged(fd, content)
    except Changed:
        return False
    return True


def _check_unchanged(fd: int, old: bytes) -> None:
    """Raise Changed if a file has other content, or if another program has it open for writing."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # not SIGIO, which would kill this process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        raise Changed(is_open=True) from None
    except OSError:  # no leases here, or not for this user
        pass
    if _read(fd) != old:
        raise Changed


def _exchange(file: File, name: str) -> bool:
    """Exchange a file and its scratch file; return whether the file system can."""
    try:
        _renameat2(name, file.scratch, file.name, file.folder, _EXCHANGE)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


def _rename_noreplace(name: str, folder: int, target: str, target_folder: int) -> None:
    """Rename a file; raise FileExistsError if the new name exists."""
    try:
        _renameat2(name, folder, target, target_folder, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if read_content(target, target_folder) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, target, src_dir_fd=folder, dst_dir_fd=target_folder)


def _renameat2(name: str, folder: int, target: str, target_folder: int, flags: int) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS if renameat2 is None else 0
    if renameat2 and renameat2(folder, os.fsencode(name), target_folder, os.fsencode(target), flags):
        number = ctypes.get_errno()
    if number:
        raise OSError(number, os.strerror(number))


def _sync(file: File) -> None:
    """Write both directories to disk, so that new names survive a power cut."""
    os.fsync(file.scratch)
    os.fsync(file.folder)


@contextlib.contextmanager
def _open(name: str, folder: int) -> Iterator[int]:
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


def _copy_content(fd: int, copy: int) -> None:
    """Copy a file of any size, which has no name any more."""
    offset = 0
    while data := os.pread(fd, LIMIT, offset):
        offset += len(data)
        while data:
            data = data[os.write(copy, data) :]


def _hash(data: bytes | None) -> str:
    return _NONE if data is None else hashlib.sha256(data).hexdigest()[:32]
