"""Which CDI specs refresh has written: a record of paths and hashes of their contents.

A file with another content is no longer refresh's. The record outlives a boot, as a spec in /etc/cdi does.
Out of scope: when to remove a spec (publish.py); specs of `gpushim cdi generate`, which belong to its user.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os

from gpushim.ground import bounds, system
from gpushim.inventory import ensure
from gpushim.paths import exchange
from gpushim.paths.replace import content, replace

DIRECTORY = system.LASTING_DIR
NAME = "specs"
CONTENTS = 2  # contents of a file: the new one and, if refresh is killed before it is there, the old one


def note(path: str, spec: str) -> str:
    """Record a spec before it is put in place; return what is wrong with the lasting record, as a full disk, or "".

    Raises:
        OSError: it is in no record, and no later refresh would know it.
    """
    known, own = _known(), _hash(spec.encode())
    present = {other: hashes for other, hashes in known.items() if os.path.lexists(other)}
    return _save({**present, path: [own, *(old for old in known.get(path, []) if old != own)][:CONTENTS]})


def ours(path: str) -> bool:
    """Say whether a file is as refresh has written it there."""
    return is_ours(path, content(path, bounds.SPEC + 1))


def is_ours(path: str, data: bytes | None) -> bool:
    """Say whether refresh has written this to a path; None is no file."""
    return data is not None and _hash(data) in _known().get(path, [])


def others(path: str) -> list[str]:
    """List the files that are as refresh has written them, except this path."""
    return [other for other in sorted(_known()) if other != path and ours(other)]


def remove(path: str) -> None:
    """Remove a file of refresh's and its record; OSError if that cannot be done, as where it is not refresh's now."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = in_folder(path, folder)
        data = exchange.content(file.name, folder)
        if data is not None:
            if not is_ours(path, data):
                raise exchange.Changed
            try:
                exchange.put(file, data, None)
            except OSError:
                if ours(path):  # whatever fails: it may name another GPU than it gives
                    os.unlink(path)
    except exchange.Changed as changed:
        raise OSError(errno.EBUSY, str(changed)) from None
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):  # a record of a file that is gone does no harm
        _save({other: hashes for other, hashes in _known().items() if other != path})


def in_folder(path: str, folder: int) -> exchange.File:
    """Return a spec's file in its directory, `folder`, open for reading."""
    name = os.path.basename(path)
    return exchange.File(name, folder, folder, name)


def _places() -> list[str]:
    """List the records: one that outlives a boot, and one where a full disk does no harm until then."""
    state = system.state_dir()
    return [f"{place}/{NAME}" for place in ((DIRECTORY, state) if state == system.STATE_DIR else (state,))]


def _known() -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}
    for place in _places():
        for path, hashes in ensure.own(place).items():
            if path.startswith("/") and isinstance(hashes, list):
                known[path] = [*known.get(path, []), *(one for one in hashes if one not in known.get(path, []))]
    return known


def _save(known: dict[str, list[str]]) -> str:
    """Write the records; as `note` returns and raises."""
    data, wrong = json.dumps(known, sort_keys=True).encode(), ""
    for place in _places():
        if content(place) == data:
            continue
        try:
            os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
            replace(place, data, 0o600)
        except OSError as error:
            if place == _places()[-1]:
                raise
            wrong = (
                f"{place} cannot be written ({error.strerror}), so after the next boot, and when the package is "
                "removed, nothing knows which CDI specs are refresh's; fix that, and refresh"
            )
    return wrong


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
