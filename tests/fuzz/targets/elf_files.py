"""ELF: the reader never raises but what it says."""

from __future__ import annotations

import shutil

from fakehost import smallelf
from fuzz.oracles import scratch
from gpushim.ground import bounds, elf
from unit.gpuhook import notes
from unit.gpuhook.caches import quick_library

LENGTH = 16384
MACHINES = ("x86_64", "aarch64")


def seeds() -> list[bytes]:
    """Return a library of gcc's, small ones of each class, and one with a note."""
    directory = scratch()
    quick_library(directory / "lib", "libcuda.so.1")
    found = [(directory / "lib").read_bytes()]
    shutil.rmtree(directory)
    found += [smallelf.library(machine, "libx.so.1") for machine in smallelf.MACHINES]
    return [*found, notes.library('{"Format": 1}')]


def one(data: bytes) -> None:
    """Read a library's SONAME and note."""
    for machine in MACHINES:
        try:
            _, name = elf.soname(lambda at, size: data[at : at + size], len(data), [machine, "i386"])
            assert len(name) <= bounds.ELF_SONAME
            assert b"\0" not in name
        except ValueError:
            pass
        try:
            wanted = notes.SECTION.encode(), notes.OWNER.encode()
            found = elf.note(lambda at, size: data[at : at + size], len(data), machine, *wanted)
            assert found is None or len(found) <= bounds.COMPAT_NOTE
        except ValueError:
            pass
