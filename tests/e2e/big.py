"""Parts of images that are as large as may be: each takes a root file system and a number, and makes that many."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from fakehost import smallelf
from gpuhook.loader.ldcache import FLAGS
from unit.gpuhook import notes
from unit.gpuhook.trees import DRV

Entry = tuple[int, bytes, int]  # flags, name, hwcap
OURS = FLAGS["x86_64"]
CACHE = "etc/ld.so.cache"
CONF = "etc/ld.so.conf.d/00-gpushim.conf"
COMPAT = "usr/local/cuda/compat"
LIBRARIES = "opt/many"
BIG = "libbig.so.1"


def cache(entries: Sequence[Entry], size: int = 0, extension: bytes = b"") -> bytes:
    """Make a glibc cache (dl-cache.h) with entries in this order, padded to a size; each name is there once."""
    names = {name: 0 for _, name, _ in entries}
    at, strings = 48 + 24 * len(entries), bytearray()
    for name in names:
        names[name] = at + len(strings)
        strings += name + b"\0"
    table = b"".join(
        struct.pack("<IIIIQ", flags, names[name], names[name], 0, hwcap) for flags, name, hwcap in entries
    )
    strings += bytes(max(size - at - len(strings), -len(strings) % 4 if extension else 0))
    offset = at + len(strings) if extension else 0
    head = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, offset)
    return head + table + bytes(strings) + extension


def same(count: int) -> bytes:
    """The cache of the attack: names that the loader takes for libcuda.so.1, for all their zeros."""
    return cache([(3, b"libcuda.so." + b"0" * 50 + b"1", 0)] * count)


def large_cache(root: Path, size: int) -> None:
    count = (size - 48) // 48
    (root / CACHE).write_bytes(cache([(OURS, b"libz%07d.so.1" % (count - n), 0) for n in range(count)], size))


def equal_names(root: Path, count: int) -> None:
    (root / CACHE).write_bytes(cache([(OURS, b"libcuda.so.1", count - n) for n in range(count)]))


def long_number(root: Path, digits: int) -> None:
    (root / CACHE).write_bytes(cache([(3, b"libcuda.so." + b"1".rjust(digits, b"0"), 0)]))


def sections(root: Path, count: int, size: int = 0) -> None:
    """Extension sections; the first is that of hwcaps' names, with so many bytes."""
    at = len(cache([(3, b"libz.so.1", 0)], extension=b"-")) - 1
    table = struct.pack("<II", 0xEAA42174, count)
    table += b"".join(struct.pack("<IIII", 1 if size else 2, 0, at + 8 + 16 * count, size) for _ in range(count))
    (root / CACHE).write_bytes(cache([(3, b"libz.so.1", 0)], extension=table + bytes(size)))


def hwcaps(root: Path, size: int) -> None:
    sections(root, 1, size)


def conf(root: Path, size: int) -> None:
    (root / CONF).parent.mkdir(exist_ok=True)
    (root / CONF).write_bytes(b"/x\n" * (size // 3) + b"/" * (size % 3))


def crowd(folder: Path, count: int, form: str = "libx%d.so.1") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count - len(os.listdir(folder))):
        os.symlink("/", folder / (form % number))


def compat_names(root: Path, count: int) -> None:
    crowd(root / COMPAT, count, "name%d")


def libcuda(root: Path, data: bytes) -> None:
    """A libcuda that is newer than the host's."""
    (root / COMPAT).mkdir(parents=True)
    (root / COMPAT / "libcuda.so.999.1").write_bytes(data)


def compat_libraries(root: Path, count: int) -> None:
    libcuda(root, notes.library())
    crowd(root / COMPAT, count - 1)  # libcuda.so.1 counts, too


def note(root: Path, size: int) -> None:
    text = json.dumps({**notes.FACTS, "Driver": []})
    libcuda(root, notes.library(text.ljust(size - 12 - 20)))


def elf(root: Path, count: int, names: int = 1) -> None:
    """A libcuda with so many sections, whose names have so many bytes."""
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, count, 0)
    first = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 + 64 * count, names, 0, 0, 0, 0)
    libcuda(root, head + first.ljust(64 * count, b"\0") + bytes(names))


def elf_names(root: Path, size: int) -> None:
    elf(root, 1, size)


def links(root: Path, count: int) -> None:
    place = root / CACHE
    place.rename(root / "etc/real")
    for number in range(count):
        following = f"link{number + 1}" if number + 1 < count else "real"
        (root / "etc" / (f"link{number}" if number else "ld.so.cache")).symlink_to(following)


def words(root: Path, count: int) -> None:
    """Two links with many words, beside the two words of /etc/ld.so.cache and the two of their ends."""
    (root / CACHE).rename(root / "etc/real")
    turns = (count - 4) // 2
    (root / CACHE).symlink_to("../etc/" * (turns // 2) + "second")
    (root / "etc/second").symlink_to("../etc/" * (turns - turns // 2) + "real")


def left_behind(root: Path, count: int) -> None:
    """Names beside one of a hook that was killed."""
    (root / DRV[1:] / (".gpushim-" + "a" * 16)).touch()
    crowd(root / DRV[1:], count)


def libraries(root: Path, count: int) -> None:
    """A directory of libraries, each of which counts."""
    (root / LIBRARIES).mkdir(parents=True)
    for number in range(count):
        (root / LIBRARIES / f"libx{number}.so.1").write_bytes(smallelf.library("x86_64", f"libx{number}.so.1"))


def library_names(root: Path, count: int) -> None:
    """A directory of files that are called like libraries."""
    (root / LIBRARIES).mkdir(parents=True)
    (root / "opt/file").touch()
    for number in range(count):
        os.link(root / "opt/file", root / LIBRARIES / f"libx{number}.so.1")


def segments(root: Path, count: int) -> None:
    """A library with a large table of segments; this and the next two are wanted in the loader's cache."""
    data = smallelf.library("x86_64", BIG)
    table = data[64 : 64 + 2 * 56].ljust(56 * count, b"\0")
    library(
        root, data[:32] + struct.pack("<Q", len(data)) + data[40:56] + struct.pack("<H", count) + data[58:] + table
    )


def dynamic(root: Path, size: int) -> None:
    data = smallelf.library("x86_64", BIG)
    place, length = len(data), size // 16 * 16
    second = struct.pack("<IIQQQQQQ", 2, 4, *[place] * 3, *[length] * 2, 8)
    table = data[smallelf.DYNAMIC : smallelf.DYNAMIC + 64]
    library(root, data[: 64 + 56] + second + data[64 + 2 * 56 :] + table.ljust(length, b"\0"))


def soname(root: Path, length: int) -> None:
    library(root, smallelf.library("x86_64", BIG.ljust(length, "x")))


def library(root: Path, data: bytes) -> None:
    (root / LIBRARIES).mkdir(parents=True)
    (root / LIBRARIES / BIG).write_bytes(data)


def long_links(root: Path, count: int) -> None:
    """A library, and names that lead to it by a link of 4000 bytes."""
    library(root, smallelf.library("x86_64", BIG))
    folder = root / LIBRARIES
    (folder / "long").symlink_to("../many/" * 500 + BIG)
    for number in range(count):
        (folder / f"libx{number:04}.so.1").symlink_to("long")
