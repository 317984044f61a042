"""One settings file of others: read with limits, and rewritten whole, with the owner, mode and attributes it has.

places.py has walked to its directory and holds it open. Out of scope: which files, and their records (files.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushim.ground.errors import GpushimError
from gpushim.paths import exchange, places
from gpushim.paths.exchange import File
from gpushim.paths.replace import replace as put_in_place
from gpushim.paths.replace import sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpushim.paths.places import Place

NEW_MODE, PRIVATE = 0o644, 0o600
LIMIT = 1 << 20  # bytes; the largest settings seen in the field have some 20 KiB
_REASONS = {
    errno.EROFS: "lies on a read-only file system; make the change where that file system is made",
    errno.EPERM: "is immutable (lsattr shows it) or belongs to another user; chattr -i, or run this as its owner",
    errno.EACCES: "may not be written by this user; run this as its owner, for the system's engines as root",
    errno.EBUSY: "is a mount point of its own; change the file that is mounted there",
    errno.ENOSPC: "does not fit: no space is left on the file system",
    errno.EDQUOT: "does not fit: the disk quota is used up",
}


def content(path: str, place: Place) -> bytes | None:
    """Read a file; None if there is none. `path` is how somebody named it, for messages.

    Raises:
        GpushimError: it is not a regular file, too large, or others could change it.
        OSError: it cannot be read.
    """
    # O_NONBLOCK: a FIFO must not hang us; regular files do not care (open(2)).
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
    try:
        fd = os.open(place.name, flags, dir_fd=place.folder)
    except FileNotFoundError:
        return None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise GpushimError(f"{path} is not a regular file; an engine could not read it either")
        places.check_file(path, facts)
        data = os.read(fd, LIMIT + 1)
    finally:
        os.close(fd)
    if len(data) > LIMIT:
        raise GpushimError(f"{path} is larger than {LIMIT >> 20} MiB; no engine has such settings")
    return data


def put(path: str, place: Place, old: bytes | None, data: bytes | None) -> list[str]:
    """Replace, make or delete a file of others, with the mode, owner and attributes that it has.

    Args:
        path: as somebody named it, for messages.
        place: of the file.
        old: what it must still hold; None if there must be no file.
        data: the new content; None deletes the file.

    Returns:
        a sentence for each attribute that could not be set, and each thing that went wrong once it was in place.

    Raises:
        GpushimError: it may not be replaced, or has been changed; it is as it was, or as somebody has made it.
    """
    lost: dict[str, str] = {}

    def finish(fd: int) -> None:
        lost.update(_take_after(fd, place))

    try:
        with both(place) as file:
            try:
                failures = exchange.put(file, old, data, finish)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Something is mounted on the directory.
                failures = exchange.put(replace(file, scratch=file.folder), old, data, finish)
    except exchange.Changed as changed:
        if changed.is_open:
            raise GpushimError(
                f"{path} is open for writing in another program; close it there, then try again"
            ) from None
        raise meanwhile(path, changed.copies) from None
    except OSError as error:
        raise refusal(path, error) from None
    notes = [f"{path} has lost its attribute {name}: {reason}" for name, reason in lost.items()]
    return notes + [f"{path} is changed, but {each}" for each in failures]


def write(place: Place, data: bytes | None, like: Place) -> None:
    """Write or delete a file of gpushim's own, with the mode and owner of another."""
    with both(place) as file:
        if data is not None:
            put_in_place(place.name, data, PRIVATE, folder=file.folder, finish=lambda fd: _take_after(fd, like))
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.name, dir_fd=file.folder)


def settle(path: str, place: Place) -> list[str]:
    """End what a killed process has begun with a file, and with its records; return sentences about copies."""
    with both(place) as file:
        copies = []
        for each in {file, replace(file, scratch=file.folder)}:
            sweep("", file.copy, each.scratch)
            copies += exchange.settle(each)
    return [f"the change made to {path} while gpushim was killed is saved in {copy}" for copy in copies]


@contextlib.contextmanager
def both(place: Place) -> Iterator[File]:
    """Open a file's directory, and the one for what is being written."""
    with beside(place) as above, opened(above) as scratch, opened(place.folder) as folder:
        yield File(place.name, folder, scratch, os.path.basename(own(place)))


def _take_after(fd: int, like: Place) -> dict[str, str]:
    """Give a new file the mode, owner and extended attributes of another; returns what `_attributes` does."""
    try:
        old = os.open(like.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=like.folder)
    except FileNotFoundError:
        os.fchmod(fd, NEW_MODE)
        return {}
    try:
        status, own = os.fstat(old), os.fstat(fd)
        if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
            os.fchown(fd, status.st_uid, status.st_gid)
        os.fchmod(fd, stat.S_IMODE(status.st_mode))
        return _attributes(fd, old)
    finally:
        os.close(old)


def _attributes(fd: int, like: int) -> dict[str, str]:
    """Give a file the extended attributes (SELinux label, ACL) of another; return why each that it lacks is missing.

    The policy may have given it some already.
    """
    lost: dict[str, str] = {}
    try:
        names = os.listxattr(like)
    except OSError:  # the file system knows none
        return lost
    for name in names:
        value = None
        try:
            value = os.getxattr(like, name)
            os.setxattr(fd, name, value)
        except OSError as error:
            with contextlib.suppress(OSError):
                if os.getxattr(fd, name) == value:
                    continue
            lost[name] = error.strerror or str(error)
    return lost


def own(place: Place) -> str:
    """Return what the paths of a file's records and copies begin with."""
    folder = os.path.dirname(place.path)
    return f"{folder}.{place.name}" if folder.endswith(".d") else place.path


@contextlib.contextmanager
def beside(place: Place) -> Iterator[int]:
    """Open the directory of a file's records: its own, or the one above if an engine reads its own as a whole."""
    name = ".." if os.path.dirname(place.path).endswith(".d") else "."
    folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        places.check(place.path, folder, os.fstat(folder))
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def opened(folder: int) -> Iterator[int]:
    """Open a directory again, for what an O_PATH fd does not do."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def status(place: Place) -> os.stat_result | None:
    """Look at a file; None if there is none."""
    try:
        return place.status()
    except FileNotFoundError:
        return None


def meanwhile(path: str, copies: Sequence[str] = ()) -> GpushimError:
    """Return the refusal of a file that somebody else has written; `copies` are copies of what he wrote."""
    copies = "".join(f"; {copy} is a copy of that change" for copy in copies)
    return GpushimError(f"{path} has been changed by somebody else meanwhile; try again{copies}")


def refusal(path: str, error: OSError) -> GpushimError:
    """Say why a file may not be replaced."""
    reason = _REASONS.get(error.errno or 0, f"cannot be replaced: {error.strerror}")
    return GpushimError(f"{path} {reason}")
