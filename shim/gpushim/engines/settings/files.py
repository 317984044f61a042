"""Settings files: read with checks, shown as a diff, and replaced whole by a rename.

No list of what was changed is kept: a file of gpushim's own says so itself (own.py), and in daemon.json it is one
entry. Of a file of others a copy stays beside it, as it was without gpushim (BEFORE).
What is written lies beside a directory of which an engine reads every file (DIR.d), not in it, and so do copies.
All is done in directories that `host_files.py` has walked to and holds open. Out of scope: what the files say.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import stat
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import host_files, lock
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from gpushim.paths.host_files import HostFile

BEFORE = ".before-gpushim"  # behind the name of a copy of a file as it was without gpushim; there is one at most
EDITED = ".kept-gpushim"  # of what somebody wrote into a file, or an entry, of gpushim's; older ones stay
RUN = system.STATE_DIR  # where root's lock is
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
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW  # a FIFO must not hang us


@dataclass(frozen=True)
class Change:
    """One file that is to become another.

    Attributes:
        path: absolute; a link is followed to its target.
        old: bytes that are there now; None if there is no file.
        new: bytes that are to be there; None to delete it.
        copy: BEFORE or EDITED, to keep `old` beside the file; "" for no copy.
        folder: the file's DIR.d goes with it, if nothing else is there.
    """

    path: str
    old: bytes | None
    new: bytes | None
    copy: str = ""
    folder: bool = False


def read(path: str) -> bytes | None:
    """Return what a settings file at an absolute path holds, links followed; None if there is none.

    Raises:
        GpushimError: it is not a regular file, too large, not readable, a link that leads nowhere, or somebody who is
            neither root nor who runs this could change it, or what is on the way to it.
    """
    try:
        with host_files.open_parent(path) as target:
            content = _content(path, target)
            if content is None and target.link:
                raise host_files.dangling(path, target.path)
            return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}") from None


def copy_path(path: str, suffix: str) -> str:
    """Return where the copy of a file is, or would be; of EDITED, the first."""
    with contextlib.suppress(FileNotFoundError), host_files.open_parent(path) as target:
        return _base(target) + suffix
    return path + suffix


def diff(changes: list[Change]) -> str:
    """Return changes as a unified diff; bytes that are not UTF-8 appear as escapes."""
    return "".join(map(_diff, changes))


def apply(changes: list[Change]) -> list[str]:
    """Make changes, all of them or none.

    Returns:
        sentences for the user about copies.

    Raises:
        GpushimError: a file has changed meanwhile, or may not be replaced; those before it are as they were, beside
            copies of them.
    """
    notes: list[str] = []
    applied: list[tuple[Change, os.stat_result | None]] = []
    with _locked():
        try:
            for change in changes:
                if change.new != change.old:
                    facts = os.stat(change.path) if os.path.exists(change.path) else None
                    notes += _carry_out(change)
                    applied.append((change, facts))
        except GpushimError as error:
            stays = []
            for change, facts in reversed(applied):
                try:
                    _carry_out(Change(change.path, change.new, change.old))
                    if change.new is None and facts:  # it is made anew
                        os.chown(change.path, facts.st_uid, facts.st_gid)
                        os.chmod(change.path, stat.S_IMODE(facts.st_mode))
                except GpushimError as reason:
                    stays.append(str(reason))
            if stays:
                raise GpushimError(
                    f"{error}; what gpushim had changed before that stays: {'; '.join(stays)}"
                ) from None
            raise
    return notes


def _locked() -> AbstractContextManager[None]:
    folder = system.state_dir()
    if folder == system.STATE_DIR:
        state_home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        folder = f"{state_home}/gpushim" if os.geteuid() else RUN
    with contextlib.suppress(OSError):  # of which the lock tells
        os.makedirs(folder, 0o755, exist_ok=True)
    return lock.held(f"{folder}/configure.lock")


def _carry_out(change: Change) -> list[str]:
    """Write or delete the file of one change; returns a sentence about its copy, if it has one."""
    path = change.path
    try:
        with host_files.open_parent(path, make=change.old is None) as target, _folders(target) as (folder, outside):
            if change.old is not None and not _mode(target) & 0o222:
                raise GpushimError(
                    f"{path} is read-only, perhaps on purpose; chmod u+w, or choose another with --config"
                )
            _check(change, target)
            copy = _copied(change, target, outside)
            _replace(change, target, folder, outside)
            with contextlib.suppress(OSError):  # it is done; only a loss of power could undo it
                os.fsync(folder)
            if change.folder and change.new is None:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.basename(os.path.dirname(target.path)), dir_fd=outside)
            return [f"{path} as it was is kept as {copy}"] if copy else []
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"cannot be replaced: {error.strerror}")
        raise GpushimError(f"{path} {reason}") from None


def _replace(change: Change, target: HostFile, folder: int, outside: int) -> None:
    """Put a file in its place, or remove it, if what is there is still as it was."""
    fresh, finish = f"{target.name}.gpushim", partial(_take_after, target=target)
    try:
        if change.new is not None:
            replace(fresh, change.new, PRIVATE, folder=outside, finish=finish)
        _check(change, target)
        if change.new is None:
            os.unlink(target.name, dir_fd=folder)
        else:
            os.rename(fresh, target.name, src_dir_fd=outside, dst_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV or change.new is None:
            raise
        replace(target.name, change.new, PRIVATE, folder=folder, finish=finish)  # something is mounted on DIR.d
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=outside)


def _check(change: Change, target: HostFile) -> None:
    if _content(change.path, target) != change.old:
        raise GpushimError(f"{change.path} has been changed by somebody else meanwhile; try again")


def _content(path: str, target: HostFile) -> bytes | None:
    """Return what a file holds; None if there is none. `path` is how somebody named it, for messages.

    Raises:
        GpushimError: it is not a regular file, too large, or others could change it.
    """
    try:
        fd = os.open(target.name, _READ, dir_fd=target.folder)
    except FileNotFoundError:
        return None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise GpushimError(f"{path} is not a regular file; an engine could not read it either")
        host_files.check_file(path, facts)
        data = os.read(fd, LIMIT + 1)
    finally:
        os.close(fd)
    if len(data) > LIMIT:
        raise GpushimError(f"{path} is larger than {LIMIT >> 20} MiB; no engine has such settings")
    return data


def _mode(target: HostFile) -> int:
    with contextlib.suppress(FileNotFoundError):
        return target.status().st_mode
    return NEW_MODE


@contextlib.contextmanager
def _folders(target: HostFile) -> Iterator[tuple[int, int]]:
    """Open a file's directory, and the one for what is not to be read by an engine: the one above a DIR.d."""
    with contextlib.ExitStack() as stack:
        fds = []
        for name in (".", ".." if _in_drop_ins(target) else "."):
            fds.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=target.folder))
            stack.callback(os.close, fds[-1])
            host_files.check(target.path, fds[-1], os.fstat(fds[-1]))
        yield fds[0], fds[1]


def _in_drop_ins(target: HostFile) -> bool:
    return os.path.dirname(target.path).endswith(".d")


def _base(target: HostFile) -> str:
    folder = os.path.dirname(target.path)
    return f"{folder}.{target.name}" if _in_drop_ins(target) else target.path


def _copied(change: Change, target: HostFile, outside: int) -> str:
    """Keep the file as it is, if that is wished; returns the path of the copy."""
    if not change.copy or change.old is None:
        return ""
    base = copy = _base(target) + change.copy
    number = 1
    while change.copy == EDITED and read(copy) not in (None, change.old):
        number += 1
        copy = f"{base}.{number}"
    name = os.path.basename(copy)
    replace(name, change.old, PRIVATE, folder=outside, finish=partial(_take_after, target=target))
    return copy


def _take_after(fd: int, target: HostFile) -> None:
    """Give a new file the mode, owner and extended attributes (SELinux label, ACL) that its forerunner has."""
    try:
        old = os.open(target.name, _READ, dir_fd=target.folder)
    except FileNotFoundError:
        os.fchmod(fd, NEW_MODE)
        return
    with open(old, "rb"):
        facts, new_facts = os.fstat(old), os.fstat(fd)
        if (new_facts.st_uid, new_facts.st_gid) != (facts.st_uid, facts.st_gid):
            os.fchown(fd, facts.st_uid, facts.st_gid)
        os.fchmod(fd, stat.S_IMODE(facts.st_mode))
        with contextlib.suppress(OSError):  # the file system knows none
            for name in os.listxattr(old):
                with contextlib.suppress(OSError):  # a label that the policy has given already
                    os.setxattr(fd, name, os.getxattr(old, name))


def _diff(change: Change) -> str:
    old, new = (_lines(data) for data in (change.old, change.new))
    names = ["/dev/null" if data is None else change.path for data in (change.old, change.new)]
    text = ""
    for line in difflib.unified_diff(old, new, names[0], names[1]):
        text += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return text


def _lines(data: bytes | None) -> list[str]:
    # Not splitlines, which also breaks at a lone carriage return and at form feeds.
    lines = (data or b"").decode("utf-8", "backslashreplace").split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
