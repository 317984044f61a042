"""ld.so.cache: what a merge makes, read by a second reader, is the old cache's entries with ours in their places."""

from __future__ import annotations

import functools
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from gpuhook.loader.ldcache import FLAGS, compare, merge
from gpushim.ground.errors import GpushimError
from gpushim.inventory import loader
from unit.gpuhook.caches import image, ldconfig

OURS = FLAGS["x86_64"]
LIBRARIES = [
    (name, b"/drv/" + name) for name in (b"libcuda.so.1", b"libfoo.so.5", b"libfoo.so.09", b"lib9.so.1", b"zz")
]
NAMES = {name for name, _ in LIBRARIES}
FEW = ("libc.so.6", "libcuda.so.1", "libfoo.so.10", "lib9.so.1")
LENGTH = 2048
FORMS = ("new", "compat", "old")
HWCAPS = 1  # the extension section of names


class Entry(NamedTuple):
    flags: int
    name: bytes
    path: bytes
    rest: bytes  # OS version and hwcap


class Cache(NamedTuple):
    entries: list[Entry]
    hwcaps: list[bytes]


def seeds() -> list[bytes]:
    """Return caches of the machine's own ldconfig in each layout, and ours of no image at all."""
    return [*_real(), merge(b"", LIBRARIES, OURS) or b""]


@functools.cache
def _real() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        top = image(Path(directory), FEW)
        return [ldconfig(top, form) for form in FORMS]


def one(data: bytes) -> None:
    """Merge our libraries into a cache, and list it."""
    _listed(data)
    try:
        merged = merge(data, LIBRARIES, OURS)
    except GpushimError as error:
        assert str(error).isprintable()
        return
    assert merged is not None or all(_has(data, *library) for library in LIBRARIES)
    if merged is None:
        return
    after = _read(merged)
    assert after is not None, "the loader takes no notice of what we made"
    assert merge(merged, LIBRARIES, OURS) is None or not _in_order(after), "a second time changes it again"
    before = _read(data) or Cache([], [])
    assert before.hwcaps == after.hwcaps
    for name, path in LIBRARIES:
        assert Entry(OURS, name, path, bytes(len(after.entries[0].rest))) in after.entries
    kept = [entry for entry in before.entries if entry in after.entries]
    lost = [entry for entry in before.entries if entry not in after.entries]
    assert all(entry.flags == OURS and _meant(entry.name) for entry in lost), lost
    assert [entry for entry in after.entries if entry.path not in {path for _, path in LIBRARIES}] == [
        entry for entry in kept if entry.path not in {path for _, path in LIBRARIES}
    ] or not _in_order(before)


def _has(data: bytes, name: bytes, path: bytes) -> bool:
    cache = _read(data)
    return cache is not None and any(entry[:3] == (OURS, name, path) for entry in cache.entries)


def _meant(name: bytes) -> bool:
    """Return whether the loader takes a name for one of ours."""
    return any(compare(name + b"\0", 0, own + b"\0") == 0 for own in NAMES)


def _in_order(cache: Cache) -> bool:
    """Return whether entries come as ldconfig sorts them: by name, those of one name by flags, the highest first."""
    keys = [(entry.name + b"\0", entry.flags) for entry in cache.entries]
    pairs = ((compare(one[0], 0, two[0]), one[1] - two[1]) for one, two in zip(keys, keys[1:]))
    return all(names > 0 or (names == 0 and flags >= 0) for names, flags in pairs)


def _listed(data: bytes) -> None:
    try:
        for name, path in loader.libraries(data, "x86_64"):
            assert len(name) + len(path) <= 2 * loader.NAME_LIMIT
    except ValueError:
        pass


def _read(data: bytes) -> Cache | None:
    """Read a cache by dl-cache.h; None where the loader finds none."""
    start = 0
    if data.startswith(b"ld.so-1.7.0") and len(data) > 16:
        (count,) = struct.unpack_from("<I", data, 12)
        start = (16 + 12 * count + 7) // 8 * 8
        if 16 + 12 * count > len(data):
            return None
        if not data[start:].startswith(b"glibc-ld.so.cache1.1") or len(data) < start + 48:
            rows = [struct.unpack_from("<3I", data, 16 + 12 * row) for row in range(count)]
            base = 16 + 12 * count
            return Cache([Entry(f, _text(data, base + n), _text(data, base + p), b"") for f, n, p in rows], [])
    if not data[start:].startswith(b"glibc-ld.so.cache1.1") or len(data) <= start + 48:
        return None
    count, _, endian, extension = struct.unpack_from("<IIB3xI", data, start + 20)
    if start + 48 + 24 * count > len(data) or endian & 3 not in (0, 2):
        return None
    found = []
    for row in range(count):
        flags, name, path, rest = struct.unpack_from("<3I12s", data, start + 48 + 24 * row)
        found.append(Entry(flags, _text(data, start + name), _text(data, start + path), rest))
    names = range(start + 48 + 24 * count, extension)
    return Cache(found, _hwcaps(data, extension, names) if 0 < extension < len(data) else [])


def _text(data: bytes, at: int) -> bytes:
    return data[at : data.index(b"\0", at)]


def _hwcaps(data: bytes, extension: int, strings: range) -> list[bytes]:
    (count,) = struct.unpack_from("<I", data, extension + 4)
    names = []
    for row in range(count):
        tag, _, offset, size = struct.unpack_from("<4I", data, extension + 8 + 16 * row)
        if tag == HWCAPS:
            places = struct.unpack_from(f"<{size // 4}I", data, offset)
            names += [_text(data, place) if place in strings else b"" for place in places]
    return names
