"""The CDI specs that refresh has written: a record of paths and hashes of their contents.

A file with another content is no longer refresh's. The record outlives a boot, as a spec in /etc/cdi does. Specs of
`gpushim cdi generate` belong to its user.
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
    """Record a spec before it is put in place; return the problem of the lasting record, as a full disk, or "".

    Raises:
        OSError: it is in no record, and no later refresh would know it.
    """
    records, digest = _read_records(), _hash(spec.encode())
    present = {file: hashes for file, hashes in records.items() if os.path.lexists(file)}
    return _save({**present, path: [digest, *(old for old in records.get(path, []) if old != digest)][:CONTENTS]})


def ours(path: str) -> bool:
    return is_ours(path, content(path, bounds.SPEC + 1))


def is_ours(path: str, data: bytes | None) -> bool:
    """Return whether refresh has written this content to a path; None is no file."""
    return data is not None and _hash(data) in _read_records().get(path, [])


def others(path: str) -> list[str]:
    return [file for file in sorted(_read_records()) if file != path and ours(file)]


def remove(path: str) -> None:
    """Remove a file of refresh's and its record; raises OSError also if it is not refresh's any more."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = in_folder(path, folder)
        data = exchange.read_content(file.name, folder)
        if data is not None:
            if not is_ours(path, data):
                raise exchange.Changed
            try:
                exchange.compare_and_swap(file, data, None)
            except OSError:
                if ours(path):  # whatever fails: it may name another GPU than it gives
                    os.unlink(path)
    except exchange.Changed as changed:
        raise OSError(errno.EBUSY, str(changed)) from None
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):  # a record of a file that is gone does no harm
        _save({other: hashes for other, hashes in _read_records().items() if other != path})


def in_folder(path: str, folder: int) -> exchange.File:
    name = os.path.basename(path)
    return exchange.File(name, folder, folder, name)


def _record_paths() -> list[str]:
    """List the records: one that outlives a boot, and one that a full disk does not affect until then."""
    state = system.state_dir()
    return [f"{folder}/{NAME}" for folder in ((DIRECTORY, state) if state == system.STATE_DIR else (state,))]


def _read_records() -> dict[str, list[str]]:
    records: dict[str, list[str]] = {}
    for record_path in _record_paths():
        for path, hashes in ensure.own(record_path).items():
            if path.startswith("/") and isinstance(hashes, list):
                records[path] = [
                    *records.get(path, []),
                    *(digest for digest in hashes if digest not in records.get(path, [])),
                ]
    return records


def _save(records: dict[str, list[str]]) -> str:
    """Write the records; as `note` returns and raises."""
    data, wrong = json.dumps(records, sort_keys=True).encode(), ""
    for target in _record_paths():
        if content(target) == data:
            continue
        try:
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            replace(target, data, 0o600)
        except OSError as error:
            if target == _record_paths()[-1]:
                raise
            wrong = (
                f"{target} cannot be written ({error.strerror}), so after the next boot, and when the package is "
                "removed, nothing knows which CDI specs are refresh's; fix that, and refresh"
            )
    return wrong


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
