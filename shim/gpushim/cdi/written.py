"""Which CDI specs refresh has written: a record of paths and hashes of their contents.

A file with another content is no longer refresh's. The record outlives a boot, as a spec in /etc/cdi does.
Out of scope: when to remove a spec (publish.py); specs of `gpushim cdi generate`, which belong to its user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from gpushim import bounds, stamp
from gpushim.inventory import ensure
from gpushim.replace import content, replace

DIRECTORY = "/var/lib/gpushim"
NAME = "specs"
KEPT = 2  # contents of a file: the new one and, if refresh is killed before it is there, the old one


def note(path: str, spec: str) -> str:
    """Record a spec before it is put in place; returns a sentence if that fails, as on a full disk, else ""."""
    known, own = _known(), _hash(spec.encode())
    kept = {other: hashes for other, hashes in known.items() if os.path.lexists(other)}
    try:
        _save({**kept, path: [own, *(old for old in known.get(path, []) if old != own)][:KEPT]})
    except OSError as error:
        return (
            f"{_place()} cannot be written ({error.strerror}), so nothing will know that {path} is refresh's: "
            "neither another output-directory nor the package's removal takes it away; fix that, and refresh"
        )
    return ""


def ours(path: str) -> bool:
    """Say whether a file is as refresh has written it there."""
    hashes = _known().get(path, [])
    return bool(hashes) and _hash(content(path, bounds.SPEC + 1) or b"") in hashes


def others(path: str) -> list[str]:
    """List the files that are as refresh has written them, except this path."""
    return [other for other in sorted(_known()) if other != path and ours(other)]


def remove(path: str) -> None:
    """Remove a file of refresh's and its record; OSError if that cannot be done."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with contextlib.suppress(OSError):  # a record of a file that is gone does no harm
        _save({other: hashes for other, hashes in _known().items() if other != path})


def _place() -> str:
    state = stamp.state_dir()
    return f"{DIRECTORY if state == stamp.STATE_DIR else state}/{NAME}"


def _known() -> dict[str, list[str]]:
    found = ensure.own(_place())
    return {path: hashes for path, hashes in found.items() if path.startswith("/") and isinstance(hashes, list)}


def _save(known: dict[str, list[str]]) -> None:
    if known == _known():
        return
    place = _place()
    os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
    replace(place, json.dumps(known, sort_keys=True).encode(), 0o600)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
