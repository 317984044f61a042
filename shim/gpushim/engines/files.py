"""Settings files of others: read with limits, shown as a diff, replaced whole, put back.

Beside a file lie what it was without gpushim when `configure` last began, as NAME.before-gpushim, and what
`configure` made of it, as NAME.after-gpushim: the two tell `undo.py` what was added. NAME.kept-gpushim is a copy of a
file of which something went that gpushim had not written. In a directory that an engine reads as a whole (NAME.d)
these would be settings themselves, so they lie beside that directory. Out of scope: what the files say.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import secrets
import shlex
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim import stamp
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 1 << 20  # bytes; the largest settings seen in the field have some 20 KiB
BEFORE, AFTER, KEPT = ".before-gpushim", ".after-gpushim", ".kept-gpushim"
NEW_MODE, NEW_DIRECTORY_MODE = 0o644, 0o755
_REASONS = {
    errno.EROFS: "lies on a read-only file system; make the change where that file system is made",
    errno.EPERM: "is immutable (lsattr shows it) or belongs to another user; chattr -i, or run this as its owner",
    errno.EACCES: "may not be written by this user; run this as its owner, for the system's engines as root",
    errno.EBUSY: "is a mount point of its own; change the file that is mounted there",
    errno.ENOSPC: "does not fit: no space is left on the file system",
    errno.EDQUOT: "does not fit: the disk quota is used up",
}


@dataclass(frozen=True)
class Change:
    """One file that is to become another.

    Attributes:
        path: absolute; a link is followed to the file it means.
        old: bytes that are there now; None if there is no file.
        new: bytes that shall be there; None to delete it.
        recorded: whether `before` and `after` are kept, which a file that shows whose it is does not need.
        before: bytes to record as what the file was without gpushim; None if it is gpushim's alone.
        lost: what goes with the change although gpushim did not write it, as somebody would look for it; a copy of
            the file is kept then.
    """

    path: str
    old: bytes | None
    new: bytes | None
    recorded: bool = True
    before: bytes | None = None
    lost: tuple[str, ...] = ()


def read(path: str) -> bytes | None:
    """Read a settings file.

    Args:
        path: absolute.

    Returns:
        its bytes; None if there is none.

    Raises:
        GpushimError: it is no regular file, too large, not readable, a link that leads nowhere, or somebody's who is
            neither root nor who runs this.
    """
    try:
        place = real(path)
        # O_NONBLOCK: a FIFO must not hang us; regular files do not care (open(2)).
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise GpushimError(f"{path} is not a regular file; an engine could not read it either")
        for owner in (status.st_uid, os.stat(os.path.dirname(place)).st_uid):
            if not stamp.trusted(owner):
                raise GpushimError(f"{path} belongs to user {owner}; run this as that user")
        data = os.read(fd, LIMIT + 1)
    finally:
        os.close(fd)
    if len(data) > LIMIT:
        raise GpushimError(f"{path} is larger than {LIMIT >> 20} MiB; that is no engine's settings")
    return data


def real(path: str) -> str:
    """Follow a file's links.

    Args:
        path: absolute. Below /proc/PID/root, where absolute links would lead out of that root, links are refused.

    Raises:
        GpushimError: a link leads nowhere, in circles, or out of another root.
    """
    if path.startswith("/proc/"):
        if os.path.islink(path):
            raise GpushimError(f"{path} is a link within another root; give the file that it means with --config")
        return path
    place = os.path.realpath(path)
    if not os.path.lexists(place) and os.path.islink(path):
        raise GpushimError(f"{path} is a link to {place}, which does not exist; make that file, or remove the link")
    if os.path.islink(place):  # realpath stops at a circle
        raise GpushimError(f"{path} is a link that leads back to itself; remove it")
    return place


def before(path: str) -> bytes | None:
    """Read what a file was without gpushim; None if there was none, or nothing is recorded."""
    return read(_record(real(path), BEFORE))


def after(path: str) -> bytes | None:
    """Read what gpushim last made of a file; None if nothing is recorded."""
    return read(_record(real(path), AFTER))


def diff(changes: list[Change]) -> str:
    """Show changes as a unified diff.

    Args:
        changes: of any files; bytes that are not UTF-8 appear as escapes.
    """
    return "".join(_diff(change) for change in changes)


def apply(changes: list[Change], *, undo: bool = False) -> list[str]:
    """Make changes, all of them or none.

    Args:
        changes: whose `old` is still what is there.
        undo: these take back: the records of `before` and `after` go too.

    Returns:
        sentences about what somebody should know: a copy that is kept, an attribute that could not be set.

    Raises:
        GpushimError: a file has changed meanwhile, or may not be replaced; those before it are as they were.
    """
    done: list[Change] = []
    notes: list[str] = []
    try:
        for change in changes:
            place = _writable(change)
            with _locked(os.path.dirname(place)):
                if read(place) != change.old:
                    raise GpushimError(f"{change.path} has been changed by somebody else meanwhile; try again")
                records = _records(place, change) if change.recorded and not undo else []
                for record in [*_kept(place, change, notes), *records]:
                    _put(record.path, record, like=place)
                    done.append(record)
                if change.new != change.old:
                    notes += _put(place, change)
            done.append(change)
    except (GpushimError, OSError) as error:
        for made in reversed(done):
            _put(real(made.path), Change(made.path, made.new, made.old))
        raise _refusal(change.path, error) if isinstance(error, OSError) else error from None
    if undo:
        _unlink([_record(real(change.path), suffix) for change in changes for suffix in (BEFORE, AFTER)])
    return notes


def prepare(changes: list[Change]) -> list[str]:
    """Leave files as they are, and record what `changes` would make of them.

    Args:
        changes: that take gpushim out.

    Returns:
        for each file the command that does so without gpushim; and what `apply` returns.
    """
    records = [Change(each.path, each.old, each.old, before=each.new, lost=each.lost) for each in changes]
    apply([record for record, change in zip(records, changes) if change.recorded])
    return [
        f"rm {shlex.quote(change.path)}"
        if change.new is None
        else f"cp {shlex.quote(_record(real(change.path), BEFORE))} {shlex.quote(change.path)}"
        for change in changes
    ]


def _records(place: str, change: Change) -> list[Change]:
    """Return the records of a change that are other than before."""
    contents = {_record(place, BEFORE): change.before, _record(place, AFTER): change.new}
    records = [Change(record, read(record), content) for record, content in contents.items()]
    return [record for record in records if record.new != record.old]


def _kept(place: str, change: Change, notes: list[str]) -> list[Change]:
    """Return the copy of a file of which something goes that gpushim did not write, under the first free name."""
    if not change.lost or change.old is None:
        return []
    path, number = _record(place, KEPT), 1
    while read(path) not in (None, change.old):
        number += 1
        path = _record(place, f"{KEPT}.{number}")
    what = ", ".join(change.lost[:4]) + (" and others" if len(change.lost) > 4 else "")
    notes.append(f"{path} is a copy of {change.path} as it was: it has {what}, of which gpushim has no record")
    return [] if read(path) else [Change(path, None, change.old)]


def _unlink(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _record(place: str, suffix: str) -> str:
    folder, name = os.path.split(place)
    return os.path.join(os.path.dirname(folder) if folder.endswith(".d") else folder, name + suffix)


def _writable(change: Change) -> str:
    """Return where a change goes, with its directory made."""
    place = real(change.path)
    if change.old is None:
        try:
            os.makedirs(os.path.dirname(place), NEW_DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise _refusal(change.path, error) from None
    elif not os.stat(place).st_mode & 0o222:
        raise GpushimError(
            f"{change.path} is read-only, so somebody wants it unchanged; chmod u+w, or --config another"
        )
    return place


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold off another `gpushim configure`; others do not know of this lock (flock(2) on the directory)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _put(place: str, change: Change, like: str = "") -> list[str]:
    """Replace, make or delete a file; `like` is the file whose mode and owner a new one gets."""
    notes: list[str] = []
    try:
        if change.new is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        else:
            lost = _replace(place, change.new, like or place)
            notes += [f"{change.path} has lost its attribute {name}: {reason}" for name, reason in lost.items()]
        folder = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the new name survives a power cut too
        finally:
            os.close(folder)
    except OSError as error:
        raise _refusal(change.path or place, error) from None
    return notes


def _replace(place: str, data: bytes, like: str) -> dict[str, str]:
    scratch = f"{os.path.dirname(place)}/.{os.path.basename(place)}.{secrets.token_hex(4)}"
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            lost = _take_after(fd, like)
            file.flush()
            os.fsync(fd)
        os.rename(scratch, place)
    except BaseException:
        os.unlink(scratch)
        raise
    return lost


def _take_after(fd: int, like: str) -> dict[str, str]:
    """Give a new file the mode, owner and extended attributes of another; returns what `_attributes` does."""
    try:
        status = os.stat(like)
    except FileNotFoundError:
        os.fchmod(fd, NEW_MODE)
        return {}
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    return _attributes(fd, like)


def _attributes(fd: int, like: str | int) -> dict[str, str]:
    """Give a file the extended attributes (SELinux label, ACL) of another.

    Returns:
        the reason for each that it does not have now; the policy may have given it some already.
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


def _refusal(path: str, error: OSError) -> GpushimError:
    reason = _REASONS.get(error.errno or 0, f"cannot be replaced: {error.strerror}")
    return GpushimError(f"{path} {reason}")


def _diff(change: Change) -> str:
    old, new = (_lines(data) for data in (change.old, change.new))
    names = ["/dev/null" if data is None else change.path for data in (change.old, change.new)]
    text = ""
    for line in difflib.unified_diff(old, new, names[0], names[1]):
        text += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return text


def _lines(data: bytes | None) -> list[str]:
    # Not splitlines, which takes a lone carriage return and form feeds for ends of lines.
    lines = (data or b"").decode("utf-8", "backslashreplace").split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
