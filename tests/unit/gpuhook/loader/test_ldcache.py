"""The cache merge, on caches of the real ldconfig, read back by the real ldconfig."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuhook.loader.ldcache import compare, merge
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError
from unit.gpuhook.caches import HWCAPS, LIBRARIES, OURS, image, ldconfig, listing

FORMS = ("new", "compat", "old")
NEW = [
    (b"libcuda.so.1", b"/drv/libcuda.so.1"),
    (b"libnvidia-ml.so.1", b"/drv/libnvidia-ml.so.1"),
    (b"libnvidia-nvvm.so.4", b"/drv/libnvidia-nvvm.so.4"),
    (b"libaaa.so.1", b"/drv/libaaa.so.1"),
    (b"libzzz.so.1", b"/drv/libzzz.so.1"),
    (b"libfoo.so.5", b"/drv/libfoo.so.5"),
]
NEW_NAMES = {name.decode() for name, _ in NEW}


@functools.cache
def real(form: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        return ldconfig(image(Path(directory)), form)


def paths(lines: list[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for line in lines:
        name, _, path = line.partition(" => ")
        result.setdefault(name.partition(" ")[0], []).append(path)
    return result


@pytest.mark.parametrize("form", FORMS)
def test_real_caches(form: str) -> None:
    old, merged = real(form), merge(real(form), NEW, OURS)
    assert merged is not None
    before, after = listing(old), listing(merged)
    assert set(LIBRARIES) <= set(paths(before))
    assert [line for line in after if line.partition(" ")[0] not in NEW_NAMES] == [
        line for line in before if line.partition(" ")[0] not in NEW_NAMES
    ]
    assert {name: paths(after)[name] for name in NEW_NAMES} == {n.decode(): [p.decode()] for n, p in NEW}


@pytest.mark.parametrize("form", FORMS)
def test_order_is_the_one_of_ldconfig(form: str) -> None:
    """The natural order is what the loader bisects by: so.10 stands before so.9 before so.5 before so.2."""
    merged = merge(real(form), NEW, OURS)
    assert merged is not None
    names = [line.partition(" ")[0].encode() + b"\0" for line in listing(merged)]
    assert all(compare(one, 0, two) >= 0 for one, two in zip(names, names[1:]))
    foo = [name for name in dict.fromkeys(names) if name.startswith(b"libfoo")]
    assert foo == [b"libfoo.so.10\0", b"libfoo.so.9\0", b"libfoo.so.5\0", b"libfoo.so.2\0"]


@pytest.mark.parametrize("form", FORMS)
def test_again_changes_nothing(form: str) -> None:
    merged = merge(real(form), NEW, OURS)
    assert merge(merged, NEW, OURS) is None
    assert merge(merged, NEW[::-1], OURS) is None


def test_extension_sections_survive() -> None:
    if not HWCAPS:
        pytest.fail("this machine's ldconfig makes no glibc-hwcaps entries known to the test")
    before, after = listing(real("new")), listing(merge(real("new"), NEW, OURS) or b"")
    for hwcap in HWCAPS:
        assert any(f'hwcap: "{hwcap}"' in line for line in after)
    strange = [line for line in before if "hwcap" in line and line.partition(" ")[0] not in NEW_NAMES]
    assert strange == [line for line in after if "hwcap" in line]


def hwcaps(data: bytes) -> tuple[int, int]:
    """Find the section of glibc-hwcaps names in a directory of sections: where its row is, and it."""
    at = extension(data)
    rows = range(at + 8, at + 8 + 16 * struct.unpack_from("<I", data, at + 4)[0], 16)
    row = next(row for row in rows if struct.unpack_from("<I", data, row)[0] == 1)
    return row, struct.unpack_from("<I", data, row + 8)[0]


@pytest.mark.skipif(not HWCAPS, reason="no glibc-hwcaps names on this kind of processor")
def test_an_offset_of_no_hwcaps_name_becomes_none() -> None:
    data = real("new")
    merged = merge(poke(data, hwcaps(data)[1], extension(data)), NEW, OURS) or b""
    assert merged[struct.unpack_from("<I", merged, hwcaps(merged)[1])[0]] == 0


@pytest.mark.skipif(not HWCAPS, reason="no glibc-hwcaps names on this kind of processor")
def test_more_hwcaps_names_than_glibc_has_are_damage() -> None:
    data = real("new") + bytes(2 * bounds.CACHE_HWCAPS)
    assert merge(poke(data, hwcaps(data)[0] + 12, bounds.CACHE_HWCAPS), NEW, OURS)
    with pytest.raises(GpushimError, match="too many glibc-hwcaps names"):
        merge(poke(data, hwcaps(data)[0] + 12, bounds.CACHE_HWCAPS + 4), NEW, OURS)


def test_our_entry_for_some_processors_alone_is_replaced() -> None:
    merged = merge(None, NEW[:1], OURS) or b""
    assert merge(merged, NEW[:1], OURS) is None
    again = merge(poke(merged, 48 + 16, 1), NEW[:1], OURS) or b""
    assert again[48 + 12 : 48 + 24] == bytes(12)


def test_a_name_may_have_so_many_entries() -> None:
    cache: bytes | None = None
    for kind in range(1, bounds.CACHE_EQUAL + 1):
        cache = merge(cache, [(b"libcuda.so.1", b"/image/%x" % kind)], kind)
    merged = merge(cache, [(b"libcuda.so.1", b"/ours")], OURS)
    assert merged
    with pytest.raises(GpushimError, match="entries in it are one name to the loader"):
        merge(merged, [(b"libcuda.so.1", b"/ours")], 0x0803)


def test_no_cache_gives_a_fresh_one() -> None:
    merged = merge(None, NEW, OURS)
    assert merged is not None
    assert paths(listing(merged)) == {n.decode(): [p.decode()] for n, p in NEW}
    assert merge(merged, NEW, OURS) is None


@pytest.mark.parametrize("libs", [[], NEW[:0]])
def test_nothing_to_add(libs: list[tuple[bytes, bytes]]) -> None:
    assert merge(None, libs, OURS) is None
    assert merge(real("new"), libs, OURS) is None


def test_of_two_with_one_name_the_first_counts() -> None:
    merged = merge(real("new"), [(b"libq.so.1", b"/one"), (b"libq.so.1", b"/two")], OURS)
    assert paths(listing(merged or b""))["libq.so.1"] == ["/one"]


@pytest.mark.parametrize("kinds", [(0x0303, 0x0003), (0x0803, 0x0003), (0x0A03, 0x0303, 0x0003)])
def test_other_architectures_keep_their_entry(kinds: tuple[int, ...]) -> None:
    cache: bytes | None = None
    for kind in kinds:
        cache = merge(cache, [(b"libcuda.so.1", b"/image/%x" % kind)], kind)
    merged = merge(cache, [(b"libcuda.so.1", b"/ours")], 0x0303) or b""
    count = struct.unpack_from("<I", merged, 20)[0]
    flags = [struct.unpack_from("<I", merged, 48 + 24 * index)[0] for index in range(count)]
    assert flags == sorted({*kinds, 0x0303}, reverse=True)


def test_leading_zeros_are_the_same_name_to_the_loader() -> None:
    cache = merge(None, [(b"libcuda.so.01", b"/image")], OURS)
    merged = merge(cache, [(b"libcuda.so.1", b"/ours")], OURS) or b""
    assert listing(merged) == [line for line in listing(merged) if "/ours" in line] != []


@pytest.mark.parametrize("form", FORMS)
def test_cut_at_every_offset(form: str) -> None:
    """Either a cache that ldconfig reads comes out, or the typed error."""
    data = real(form)
    outcomes = set()
    for end in range(len(data)):
        try:
            merged = merge(data[:end], NEW, OURS)
        except GpushimError:
            outcomes.add("damaged")
            continue
        assert merged is not None
        outcomes.add("whole" if merge(merged, NEW, OURS) is None else "not ours")
    assert outcomes == {"damaged", "whole"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"glibc-ld.so.cache1.2" + bytes(100),
        b"glibc-ld.so.cache1.1" + b"\xff" * 100,
        b"glibc-ld.so.cache1.1" + bytes(8) + b"\3" + bytes(91),
        b"ld.so-1.7.0\0" + b"\xff" * 100,
        b"ld.so-1.7.0",
    ],
)
def test_what_the_loader_ignores_is_replaced(data: bytes) -> None:
    assert merge(data, NEW, OURS) == merge(None, NEW, OURS)


def poke(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + struct.pack("<I", value & 0xFFFFFFFF) + data[offset + 4 :]


def extension(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 32)[0])


DAMAGE = {
    "name beyond the end": lambda data: poke(data, 48 + 4, 0x7FFFFFFF),
    "path beyond the end": lambda data: poke(data, 48 + 8, 0xFFFFFFFF),
    "name in the header": lambda data: poke(data, 48 + 4, 3),
    "extension beyond the end": lambda data: poke(data, 32, len(data) + 4),
    "extension in the entries": lambda data: poke(data, 32, 52),
    "extension without magic": lambda data: poke(data, extension(data), 0),
    "a million sections": lambda data: poke(data, extension(data) + 4, 1_000_000),
    "section beyond the end": lambda data: poke(data, extension(data) + 8 + 12, len(data)),
    "section before the extension": lambda data: poke(data, extension(data) + 8 + 8, 0),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_reported(kind: str) -> None:
    with pytest.raises(GpushimError):
        merge(DAMAGE[kind](real("new")), NEW, OURS)


def test_a_name_of_a_million_digits_is_damage() -> None:
    cache = merge(None, [(b"libcuda.so." + b"1" * 1_000_000, b"/image")], 0x0003)
    with pytest.raises(GpushimError):
        merge(cache, NEW, OURS)


def glibc_compare(one: bytes, two: bytes) -> int:
    """_dl_cache_libcmp as published, on Python's unbounded integers and without its speed."""

    def tokens(text: bytes) -> list[tuple[int, int]]:
        result, at = [], 0
        while at < len(text):
            end = at
            while end < len(text) and chr(text[end]) in "0123456789":
                end += 1
            result.append((2, int(text[at:end])) if end > at else (1, text[at]))
            at = max(end, at + 1)
        return [*result, (0, 0)]

    return (tokens(one) > tokens(two)) - (tokens(one) < tokens(two))


NAMES = st.text("ab.-019", min_size=1, max_size=12).map(str.encode)
ENTRIES = st.lists(st.tuples(NAMES, NAMES.map(lambda name: b"/" + name)), max_size=12)


@given(NAMES, NAMES)
@example(b"lib1", b"lib10")
@example(b"lib109", b"lib12")
@example(b"lib1.2", b"lib12")
@example(b"lib01", b"lib1")
def test_compare_agrees_with_glibc(one: bytes, two: bytes) -> None:
    result = compare(one + b"\0", 0, two + b"\0")
    assert (result > 0) - (result < 0) == glibc_compare(one, two)


def entries(data: bytes) -> list[tuple[bytes, bytes, int]]:
    """Read a new-format cache the plain way."""
    result = []
    for index in range(struct.unpack_from("<I", data, 20)[0]):
        flags, key, value = struct.unpack_from("<III", data, 48 + 24 * index)
        name, path = (data[at : data.index(b"\0", at)] for at in (key, value))
        result.append((name, path, flags))
    return result


def same(one: bytes, two: bytes) -> bool:
    return glibc_compare(one, two) == 0


@given(ENTRIES, ENTRIES, ENTRIES)
def test_merge_keeps_all_others_in_order(
    first: list[tuple[bytes, bytes]], foreign: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]
) -> None:
    base = merge(merge(None, first, OURS), foreign, 0x0003)
    merged = merge(base, second, OURS) or base
    old, new = (entries(data) if data else [] for data in (base, merged))
    dropped = [entry for entry in old if entry[2] == OURS and any(same(entry[0], name) for name, _ in second)]
    assert [entry for entry in new if entry in old and entry not in dropped] == [e for e in old if e not in dropped]
    for name, _ in second:
        winner = next(path for other, path in second if same(other, name))
        assert [path for other, path, flags in new if same(other, name) and flags == OURS] == [winner]
    keys = list(zip(new, new[1:]))
    assert all(glibc_compare(a[0], b[0]) >= 0 for a, b in keys)
    assert all(a[2] > b[2] for a, b in keys if same(a[0], b[0]))
    assert merge(merged, second, OURS) is None


@given(ENTRIES, ENTRIES, ENTRIES)
def test_both_kinds_at_once_are_as_one_after_the_other(
    first: list[tuple[bytes, bytes]], ours: list[tuple[bytes, bytes]], narrow: list[tuple[bytes, bytes]]
) -> None:
    base = merge(None, first, OURS)
    once = merge(base, ours, OURS, narrow, 0x0003) or base
    twice = merge(base, ours, OURS) or base
    twice = merge(twice, narrow, 0x0003) or twice
    assert (once and entries(once)) == (twice and entries(twice))
