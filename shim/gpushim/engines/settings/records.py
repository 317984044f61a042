"""What `gpushim configure` keeps beside a settings file of others, and how that is found again.

Two records tell `undo.py` what was added: NAME.before-gpushim, which is the file without gpushim when `configure`
last began, and NAME.after-gpushim, which is what `configure` made of it. NAME.kept-gpushim is a copy of a file from
which something went that gpushim had not written. In a directory that an engine reads as a whole (DIR.d) these would
be settings themselves, so they lie beside it and have its name before theirs.
`configured` in gpushim's own directory lists the files: where the records are, the path that was given, the one that
it led to, device and inode, and the settings that led there. So records are found for a file that has been moved, or
become a link, since (`_is_of` has the rule), and so is a file that nothing leads to any more. Without it, they are
where the file is. Out of scope: when there are any (files.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import rewrite
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import lock, places, replace, trust
from gpushim.paths.places import Place

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

BEFORE, AFTER = ".before-gpushim", ".after-gpushim"
DIRECTORY, RUN = system.LASTING_DIR, system.STATE_DIR
NAME, LOCK = "configured", "configure.lock"


def before(path: str) -> bytes | None:
    """Read what a file was without gpushim; None if there was none, or nothing is recorded."""
    return read(found(path) + BEFORE)


def after(path: str) -> bytes | None:
    """Read what gpushim last made of a file; None if nothing is recorded."""
    return read(found(path) + AFTER)


def found(path: str) -> str:
    """Return what the paths of a file's records begin with: of those that are there, or would be."""
    with contextlib.suppress(FileNotFoundError), places.place(path) as place:
        mine = rewrite.own(place)
        if not any_at(mine):
            for base, row in _rows().items():
                if _is_of(base, row, path, place):
                    return base
        return mine
    return path


def _is_of(base: str, row: dict[str, Any], path: str, place: Place) -> bool:
    """Say whether records that lie elsewhere are of this file.

    A path may lead to another file by now, and an inode number may be another file's. So the records of the same path
    count if what was written is there, or nothing is where that was; those of the same inode, if it holds what was
    written.
    """
    status = rewrite.status(place)
    same = status is not None and (row["device"], row["inode"]) == (status.st_dev, status.st_ino)
    if row["given"] == path and (same or not os.path.isfile(row["path"]) or os.path.islink(row["path"])):
        return any_at(base)
    return (row["given"] == path or same) and rewrite.content(path, place) == read(base + AFTER) is not None


def any_at(base: str) -> bool:
    """Say whether there are records whose paths begin so."""
    return any(read(base + suffix) is not None for suffix in (BEFORE, AFTER))


def read(path: str) -> bytes | None:
    """Read a record; None if there is none."""
    try:
        with places.place(path) as place:
            return rewrite.content(path, place)
    except FileNotFoundError:
        return None


def remove(base: str) -> None:
    """Remove the records whose paths begin so; raises OSError."""
    for suffix in (BEFORE, AFTER):
        with contextlib.suppress(FileNotFoundError), places.place(base + suffix) as place:
            os.unlink(place.name, dir_fd=place.folder)


def led(main: str, known: list[str]) -> list[str]:
    """List the files with records to which an engine's main settings once led, beside those that are known."""
    here = {os.path.realpath(path) for path in known}
    paths = [os.path.realpath(row["path"]) for row in _rows().values() if row["main"] == main]
    return [path for path in dict.fromkeys(paths) if path not in here]


def note(path: str, place: Place, main: str = "", *, gone: bool = False) -> None:
    """List a file whose records have been written, or are `gone`; other roots have no place in the list.

    `main` is the path of the settings that lead to it, if it is not itself what an engine is started with.
    """
    base, status, known = rewrite.own(place), rewrite.status(place), _rows()
    rows = {other: row for other, row in known.items() if other != base and not _gone(other)}
    if status and not gone and not path.startswith("/proc/"):
        named = {"given": path, "path": place.path, "main": main}
        rows[base] = {**named, "device": status.st_dev, "inode": status.st_ino}
    if rows != known:
        with contextlib.suppress(OSError):  # without it, the records are where the file is
            _save(rows)


def _gone(base: str) -> bool:
    try:
        return not any_at(base)
    except (GpushimError, OSError):  # a place of another file's that is not to be trusted now
        return False


def locked() -> AbstractContextManager[None]:
    """Hold off other `gpushim configure` of the same user."""
    folder = _directory(RUN)
    with contextlib.suppress(OSError):  # of which the lock tells
        os.makedirs(folder, 0o755, exist_ok=True)
    return lock.held(f"{folder}/{LOCK}")


def _directory(roots: str) -> str:
    """Return the directory of an own state, `roots` for root, else one in the user's home."""
    state = system.state_dir()
    if state != system.STATE_DIR:
        return state
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{home}/gpushim" if os.geteuid() else roots


def _rows() -> dict[str, dict[str, Any]]:
    fields = {"given", "path", "main", "device", "inode"}
    folder = _directory(DIRECTORY)
    try:
        known = json.loads(replace.content(f"{folder}/{NAME}") or b"{}") if trust.ours(folder) else {}
    except ValueError:
        return {}
    items = known.items() if isinstance(known, dict) else ()
    return {base: row for base, row in items if isinstance(row, dict) and set(row) == fields}


def _save(rows: dict[str, dict[str, Any]]) -> None:
    path = f"{_directory(DIRECTORY)}/{NAME}"
    if rows:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        replace.replace(path, json.dumps(rows, sort_keys=True).encode(), 0o600)
    else:
        os.unlink(path)
