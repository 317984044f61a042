"""ELF: the hook's reader and the inventory's never raise but what they say, and find the same SONAME."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fakehost import smallelf
from fuzz.oracles import scratch
from gpuhook import elf
from gpushim import bounds
from gpushim.inventory import elf as own
from unit.gpuhook import notes
from unit.gpuhook.caches import quick_library

LENGTH = 16384
MACHINES = ("x86_64", "aarch64")
PLACE = os.memfd_create("library")


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
    os.ftruncate(PLACE, 0)
    os.pwrite(PLACE, data, 0)
    for machine in MACHINES:
        theirs = _hooks(machine, len(data))
        if theirs and theirs[0] == 64:
            ours = _inventorys(machine)
            # The inventory's reader refuses more: paths, names that are not ASCII, segments beyond the file's end.
            assert ours is None or ours.encode() == theirs[1], (ours, theirs)
        try:
            found = elf.note(PLACE, len(data), machine, notes.SECTION.encode(), notes.OWNER.encode())
            assert found is None or len(found) <= bounds.COMPAT_NOTE
        except ValueError:
            pass


def _hooks(machine: str, size: int) -> tuple[int, bytes] | None:
    try:
        bits, name = elf.soname(PLACE, size, machine)
    except ValueError:
        return None
    assert len(name) <= bounds.ELF_SONAME
    assert b"\0" not in name
    return bits, name


def _inventorys(machine: str) -> str | None:
    try:
        return own.soname(str(Path("/proc/self/fd") / str(PLACE)), machine)
    except ValueError:
        return None
