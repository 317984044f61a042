"""Settings files of others: read with limits, shown as a diff, replaced whole, put back.

Each `configure` renews the records (records.py) and each --remove removes them, whether the file changes or not: a
record that outlives its file would be believed of the next one. All is done in directories that `places.py` has
walked to and holds open. Out of scope: what the files say.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim.engines.settings import records, rewrite
from gpushim.ground.errors import GpushimError
from gpushim.paths import exchange, places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushim.paths.places import Place


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
        main: absolute path of the engine's settings that lead to it; "" if it is those.
        made: bytes to record as what gpushim made, where `new` keeps what somebody else wrote into its entry.
        partly: something of gpushim's stays although this takes back, and so do the records.
    """

    path: str
    old: bytes | None
    new: bytes | None
    recorded: bool = True
    before: bytes | None = None
    lost: tuple[str, ...] = ()
    main: str = ""
    made: bytes | None = None
    partly: bool = False


def read(path: str) -> bytes | None:
    """Read a settings file at an absolute path, links followed; None if there is none.

    Raises:
        GpushimError: it is not a regular file, too large, not readable, a link that leads nowhere, or somebody who is
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
        sentences for the user about kept copies, attributes that could not be set, and what killed processes left.

    Raises:
        GpushimError: a file has changed meanwhile, or may not be replaced; those before it are as they were, but for
            what somebody else has written since.
    """
    notes: list[str] = []
    done: list[Callable[[], object]] = []  # what takes back what is made, in the order in which it was
    with records.locked():
        whole = [change for change in changes if undo and not change.partly]
        there = {change.path: records.found(change.path) for change in whole if change.recorded}
        try:
            for change in changes:
                notes += _settled(change.path)
                if change.new != change.old or (change not in whole and (first or _is_recorded(change))):
                    notes += _made(change, done, recorded=change.recorded and change not in whole)
        except BaseException as error:
            stays = _taken_back(done)
            if isinstance(error, GpushimError) and stays:
                raise GpushimError(
                    f"{error}; and what gpushim had changed before that stays: {'; '.join(stays)}"
                ) from None
            raise
        for path, base in there.items():
            _forget(path, base)
    return notes


def _made(change: Change, done: list[Callable[[], object]], *, recorded: bool) -> list[str]:
    """Make one change: the copy and the records, then the file."""
    path = change.path
    notes: list[str] = []
    with _writable(change) as place:
        if exchange.content(place.name, place.folder) != change.old:
            raise rewrite.meanwhile(path)
        base, there = rewrite.own(place), records.found(path)
        expected = _copied(base, change, notes)
        if recorded:
            after = change.new if change.made is None else change.made
            expected += [(base + records.BEFORE, change.before), (base + records.AFTER, after)]
        for record, data in expected:
            old = records.read(record)
            if old != data:
                done.append(functools.partial(_record, path, record, old))
                _record(path, record, data)
        if change.new != change.old:
            notes += rewrite.put(path, place, change.old, change.new)
            done.append(functools.partial(_put_back, change))
        if recorded:
            if there != base:  # of where the file was when gpushim last wrote it
                _forget(path, there)
            records.note(path, place, change.main)
    return notes


def _taken_back(done: list[Callable[[], object]]) -> list[str]:
    """Take back what was made, the last first; return why for what stays."""
    stays = []
    for take_back in reversed(done):
        try:
            take_back()
        except GpushimError as error:
            stays.append(str(error))
    return stays


def _put_back(change: Change) -> None:
    with places.place(change.path) as place:
        rewrite.put(change.path, place, change.new, change.old)


def _record(path: str, record: str, data: bytes | None) -> None:
    try:
        with places.place(path) as like, places.place(record) as place:
            rewrite.write(place, data, like)
    except OSError as error:
        raise rewrite.refusal(path, error) from None


def prepare(changes: list[Change]) -> list[str]:
    """Leave files as they are, and record what `changes`, which take gpushim out, would make of them.

    Returns:
        for each file a command that takes gpushim out without gpushim, if nobody has edited the file meanwhile.
    """
    found = [each for each in changes if each.new != each.old]
    apply([Change(each.path, each.old, each.old, before=each.new, lost=each.lost) for each in found], first=True)
    return [_by_hand(change) for change in found]


def _by_hand(change: Change) -> str:
    base = records.found(change.path)
    before, after = (shlex.quote(base + suffix) for suffix in (records.BEFORE, records.AFTER))
    path = shlex.quote(change.path)
    if change.new is None:
        undo, otherwise = f"rm {path}", f"keep what diff {after} {path} shows, take the rest out"
    else:
        undo, otherwise = f"cp {before} {path}", f"take out what diff {before} {after} shows"
    message = shlex.quote(f"{change.path} has been edited since: {otherwise}")
    return f"if cmp -s {path} {after}; then {undo}; else echo {message}; fi"


def copies(path: str) -> list[str]:
    """List the copies of a file with what somebody wrote into gpushim's entry, the oldest first."""
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError), places.place(path) as place:
        base = rewrite.own(place)
        while records.read(_copy(base, len(found))) is not None:
            found.append(_copy(base, len(found)))
    return found


def _copied(base: str, change: Change, notes: list[str]) -> list[tuple[str, bytes | None]]:
    """Return the copy of a file of which something goes that gpushim did not write, under the first free name."""
    if not change.lost or change.old is None:
        return []
    number = 0
    while records.read(_copy(base, number)) not in (None, change.old):
        number += 1
    copy = _copy(base, number)
    what = ", ".join(change.lost[:4]) + (" and others" if len(change.lost) > 4 else "")
    notes.append(f"{copy} is a copy of {change.path} as it was: it has {what}, of which gpushim has no record")
    return [(copy, change.old)]


def _copy(base: str, number: int) -> str:
    return base + exchange.COPY + (f".{number + 1}" if number else "")


def _is_recorded(change: Change) -> bool:
    return change.recorded and records.any_at(records.found(change.path))


def _forget(path: str, base: str) -> None:
    try:
        records.remove(base)
        with places.place(path) as place:
            records.note(path, place, gone=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise rewrite.refusal(base, error) from None


def _settled(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError), places.place(path) as place:
        return rewrite.settle(path, place)
    return []


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
                f"{change.path} is read-only, perhaps on purpose; chmod u+w, or choose another with --config"
            )
        yield place


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
