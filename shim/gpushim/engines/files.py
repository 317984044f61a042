"""Settings files of others: read with limits, shown as a diff, replaced whole, put back.

Two records lie beside a file and tell `undo.py` what was added: NAME.before-gpushim, which is the file without
gpushim when `configure` last began, and NAME.after-gpushim, which is what `configure` made of it. NAME.kept-gpushim
is a copy of a file from which something went that gpushim had not written. In a directory that an engine reads as a
whole (NAME.d) these would be settings themselves, so they lie beside that directory, as does a file that is being
written. Each `configure` renews the records and each --remove removes them, whether the file changes or not: a record
that outlives its file would be believed of the next one. All is done in directories that `places.py` has walked to
and holds open. Out of scope: what the files say.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim import replace
from gpushim.engines import places, rewrite
from gpushim.engines.places import Place
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE, AFTER, KEPT = ".before-gpushim", ".after-gpushim", ".kept-gpushim"


@dataclass(frozen=True)
class Change:
    """One file that is to become another.

    Attributes:
        path: absolute; a link is followed to its target.
        old: bytes that are there now; None if there is no file.
        new: bytes that are to be there; None to delete it.
        recorded: whether `before` and `after` are kept; a file that shows whose it is needs no records.
        before: bytes to record as the file without gpushim; None if it is gpushim's alone.
        lost: settings that go although gpushim did not write them; a copy of the file is kept then.
    """

    path: str
    old: bytes | None
    new: bytes | None
    recorded: bool = True
    before: bytes | None = None
    lost: tuple[str, ...] = ()


def read(path: str) -> bytes | None:
    """Read a settings file at an absolute path, links followed; None if there is none.

    Raises:
        GpushimError: it is no regular file, too large, not readable, a link that leads nowhere, or somebody who is
            neither root nor who runs this could change it, or what is on the way to it.
    """
    try:
        with places.place(path) as place:
            content = rewrite.content(path, place)
            if content is None and place.link:
                raise places.dangling(path, place.path)
            return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}") from None


def before(path: str) -> bytes | None:
    """Read what a file was without gpushim; None if there was none, or nothing is recorded."""
    return _recorded(path, BEFORE)


def after(path: str) -> bytes | None:
    """Read what gpushim last made of a file; None if nothing is recorded."""
    return _recorded(path, AFTER)


def diff(changes: list[Change]) -> str:
    """Show changes as a unified diff; bytes that are not UTF-8 appear as escapes."""
    return "".join(_diff(change) for change in changes)


def apply(changes: list[Change], *, undo: bool = False, first: bool = False) -> list[str]:
    """Make changes, all of them or none.

    Args:
        changes: their `old` must still be there; where `new` is the same, only the records change.
        undo: these take back, so the records go too.
        first: record also files that do not change and have no records yet, for which `undo.py` is right without.

    Returns:
        sentences for the user about kept copies and attributes that could not be set.

    Raises:
        GpushimError: a file has changed meanwhile, or may not be replaced; those before it are as they were.
    """
    done: list[tuple[str, str, Change]] = []  # the file, the suffix of a record of it, what was made
    notes: list[str] = []
    try:
        for change in changes:
            _sweep(change.path)
            if change.new == change.old and (undo or not (first or _is_recorded(change))):
                continue
            with _writable(change) as place, _locked(place.folder), rewrite.beside(place) as folder:
                if rewrite.content(change.path, place) != change.old:
                    raise GpushimError(f"{change.path} has been changed by somebody else meanwhile; try again")
                records = _records(place, folder, change) if change.recorded and not undo else []
                for suffix, record in [*_kept(place, folder, change, notes), *records]:
                    rewrite.put(record.path, _record(place, folder, suffix), record.new, like=place)
                    done.append((change.path, suffix, record))
                if change.new != change.old:
                    notes += rewrite.put(change.path, place, change.new)
            done.append((change.path, "", change))
    except (GpushimError, OSError) as error:
        for path, suffix, made in reversed(done):
            with places.place(path) as place, rewrite.beside(place) as folder:
                where = _record(place, folder, suffix) if suffix else place
                rewrite.put(made.path, where, made.old)
        raise rewrite.refusal(change.path, error) if isinstance(error, OSError) else error from None
    if undo:
        for change in changes:
            _forget(change)
    return notes


def prepare(changes: list[Change]) -> list[str]:
    """Leave files as they are, and record what `changes`, which take gpushim out, would make of them.

    Returns:
        for each file a command that takes gpushim out without gpushim, if nobody has edited the file meanwhile.
    """
    found = [each for each in changes if each.new != each.old]
    apply([Change(each.path, each.old, each.old, before=each.new, lost=each.lost) for each in found], first=True)
    return [_by_hand(change) for change in found]


def _by_hand(change: Change) -> str:
    with places.place(change.path) as place:
        before, after = (shlex.quote(_record_path(place, suffix)) for suffix in (BEFORE, AFTER))
    path = shlex.quote(change.path)
    if change.new is None:
        undo, otherwise = f"rm {path}", f"keep what diff {after} {path} shows, take the rest out"
    else:
        undo, otherwise = f"cp {before} {path}", f"take out what diff {before} {after} shows"
    told = shlex.quote(f"{change.path} has been edited since: {otherwise}")
    return f"if cmp -s {path} {after}; then {undo}; else echo {told}; fi"


def kept(path: str) -> list[str]:
    """List the copies of a file with what somebody wrote into gpushim's entry, the oldest first."""
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError), places.place(path) as place, rewrite.beside(place) as folder:
        while True:
            record = _record(place, folder, KEPT + (f".{len(found) + 1}" if found else ""))
            if rewrite.status(record) is None:
                break
            found.append(record.path)
    return found


def _records(place: Place, folder: int, change: Change) -> list[tuple[str, Change]]:
    """Return the records of a change that are other than before, by suffix."""
    records = []
    for suffix, content in ((BEFORE, change.before), (AFTER, change.new)):
        record = _record(place, folder, suffix)
        old = rewrite.content(record.path, record)
        if old != content:
            records.append((suffix, Change(record.path, old, content)))
    return records


def _kept(place: Place, folder: int, change: Change, notes: list[str]) -> list[tuple[str, Change]]:
    """Return the copy of a file of which something goes that gpushim did not write, under the first free name."""
    if not change.lost or change.old is None:
        return []
    suffix, number = KEPT, 1
    while True:
        record = _record(place, folder, suffix)
        there = rewrite.content(record.path, record)
        if there in (None, change.old):
            break
        number += 1
        suffix = f"{KEPT}.{number}"
    what = ", ".join(change.lost[:4]) + (" and others" if len(change.lost) > 4 else "")
    notes.append(f"{record.path} is a copy of {change.path} as it was: it has {what}, of which gpushim has no record")
    return [] if there else [(suffix, Change(record.path, None, change.old))]


def _record(place: Place, folder: int, suffix: str) -> Place:
    return Place(folder, place.name + suffix, _record_path(place, suffix))


def _record_path(place: Place, suffix: str) -> str:
    folder = os.path.dirname(place.path)
    return os.path.join(os.path.dirname(folder) if folder.endswith(".d") else folder, place.name + suffix)


def _is_recorded(change: Change) -> bool:
    return change.recorded and any(_recorded(change.path, suffix) is not None for suffix in (BEFORE, AFTER))


def _forget(change: Change) -> None:
    for suffix in (BEFORE, AFTER) if change.recorded else ():
        try:
            with places.place(change.path) as place, rewrite.beside(place) as folder:
                os.unlink(place.name + suffix, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise rewrite.refusal(change.path + suffix, error) from None


def _sweep(path: str) -> None:
    """Remove what was being written for a file, or for a record of it, by a process that was killed."""
    with contextlib.suppress(FileNotFoundError), places.place(path) as place, rewrite.beside(place) as folder:
        for each in (place.folder, folder):
            with rewrite.opened(each) as fd:
                replace.sweep("", place.name, fd)


def _recorded(path: str, suffix: str) -> bytes | None:
    try:
        with places.place(path) as place, rewrite.beside(place) as folder:
            record = _record(place, folder, suffix)
            return rewrite.content(record.path, record)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _writable(change: Change) -> Iterator[Place]:
    """Open where a change goes, with its directory made."""
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(places.place(change.path, make=change.old is None))
        except OSError as error:
            raise rewrite.refusal(change.path, error) from None
        status = rewrite.status(place)
        if status and not status.st_mode & 0o222 and change.new != change.old:
            raise GpushimError(
                f"{change.path} is read-only, so somebody wants it unchanged; chmod u+w, or --config another"
            )
        yield place


@contextlib.contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Hold off another `gpushim configure`; others do not know of this lock (flock(2) on the directory)."""
    with rewrite.opened(folder) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


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
