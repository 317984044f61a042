"""Which CDI specs refresh has written, and where: a record of paths and contents.

A file that has another content is somebody else's now, whatever its name. The record outlives a boot, as a spec in
/etc/cdi does. Out of scope: when a spec goes (publish.py); specs that `gpushim cdi generate` writes are its user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from gpushim import bounds, stamp
from gpushim.inventory import ensure

DIRECTORY = "/var/lib/gpushim"
NAME = "specs"
KEPT = 2  # contents of a file: the new one and, if refresh is killed before it is there, the old one


def note(path: str, content: str) -> None:
    """Record a spec before it is put in place; without a record, as on a full disk, it is nobody's.

    Args:
        path: of the spec.
        content: of it.
    """
    known, own = _known(), _hash(content.encode())
    kept = {other: hashes for other, hashes in known.items() if os.path.lexists(other)}
    _save({**kept, path: [own, *(old for old in known.get(path, []) if old != own)][:KEPT]})


def ours(path: str) -> bool:
    """Say whether a file is as refresh has written it there."""
    hashes = _known().get(path, [])
    return bool(hashes) and _hash(_content(path)) in hashes


def others(path: str) -> list[str]:
    """List the files that are as refresh has written them, without this path."""
    return [other for other in sorted(_known()) if other != path and ours(other)]


def remove(path: str) -> None:
    """Remove a file that is ours, and forget it.

    Raises:
        OSError: it cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _save({other: hashes for other, hashes in _known().items() if other != path})


def _place() -> str:
    state = stamp.state_dir()
    return f"{DIRECTORY if state == stamp.STATE_DIR else state}/{NAME}"


def _known() -> dict[str, list[str]]:
    found = ensure.own(_place())
    return {path: hashes for path, hashes in found.items() if path.startswith("/") and isinstance(hashes, list)}


def _save(known: dict[str, list[str]]) -> None:
    place, text = _place(), json.dumps(known, sort_keys=True)
    if known == _known():
        return
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place + ".new")  # of a refresh that was killed
        with open(os.open(place + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(place + ".new", place)
        return
    with contextlib.suppress(OSError):
        os.unlink(place + ".new")


def _content(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            return file.read(bounds.SPEC + 1)
    except OSError:
        return b""


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
