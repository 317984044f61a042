"""Read the SONAME of a shared library.

Layout: elf(5). Only files of our own byte order, which is what a driver's libraries are.
Out of scope: sections, symbols, and anything that the dynamic segment does not say.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from typing import TYPE_CHECKING

from gpushim.inventory import rooted

if TYPE_CHECKING:
    from typing import BinaryIO

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_STRTAB, DT_SONAME = 0, 5, 14
MAGIC = b"\x7fELF"
BYTE_ORDER = 1 if sys.byteorder == "little" else 2  # EI_DATA
CLASS32, CLASS64 = 1, 2  # EI_CLASS
HEADER = 64  # bytes; that of 32-bit files has 52
MACHINES = {"x86_64": 62, "aarch64": 183, "ppc64le": 21, "riscv64": 243, "i386": 3}  # e_machine
MAX_SEGMENTS = 256
MAX_DYNAMIC = 1 << 16  # bytes; real ones have well under a kilobyte
MAX_NAME = 256

# By class: place and form of e_phoff, place of e_phentsize and e_phnum, a program header, a dynamic entry.
_LAYOUTS = {CLASS32: (28, "=I", 42, "=8I", "=iI"), CLASS64: (32, "=Q", 54, "=IIQQQQQQ", "=qQ")}


class ForeignError(ValueError):
    """A library for another machine: of no use here, and nothing wrong with it."""


def soname(path: str, machine: str = "") -> str:
    """Read a library's SONAME.

    Args:
        path: of a regular file on the host.
        machine: that it has to be for, as uname names it, or "i386"; this one by default.

    Returns:
        the SONAME, "" if it has none.

    Raises:
        ForeignError: it is for another machine.
        ValueError: it is not such a library, or it is damaged.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0, opener=rooted.nonblocking) as file:
        try:
            return _soname(file, machine or platform.machine())
        except struct.error:
            raise ValueError("it ends too early") from None


def _soname(file: BinaryIO, machine: str) -> str:
    header = file.read(HEADER)
    if not header.startswith(MAGIC) or len(header) < HEADER or header[5] != BYTE_ORDER:
        raise ValueError("it is not an ELF file of this byte order")
    bits = header[4]
    (number,) = struct.unpack_from("=H", header, 18)
    if bits not in _LAYOUTS:
        raise ValueError("it is neither a 32-bit nor a 64-bit ELF file")
    if bits != (CLASS32 if machine == "i386" else CLASS64) or number != MACHINES.get(machine, number):
        raise ForeignError(f"it is a library for another machine (class {bits}, machine {number})")
    segments = _segments(file, header)
    dynamic = next((segment for segment in segments if segment[0] == PT_DYNAMIC), None)
    if dynamic is None or dynamic[3] > MAX_DYNAMIC:
        raise ValueError("it has no dynamic segment of a sensible size")
    tags = _tags(_piece(file, dynamic[3], dynamic[1]), _LAYOUTS[bits][4])
    if DT_SONAME not in tags:
        return ""
    strings = tags.get(DT_STRTAB, 0)
    for kind, offset, address, in_file in segments:
        if kind == PT_LOAD and address <= strings < address + in_file:
            name, end, _ = _piece(file, MAX_NAME, strings - address + offset + tags[DT_SONAME]).partition(b"\0")
            if not end or b"/" in name:
                raise ValueError("its SONAME does not end" if not end else "its SONAME is a path")
            return name.decode("ascii", "strict")
    raise ValueError("its string table is not in the file")


def _segments(file: BinaryIO, header: bytes) -> list[tuple[int, int, int, int]]:
    """Read the program headers: (type, offset, address, size in the file) of each."""
    place, form, counts, segment, _ = _LAYOUTS[header[4]]
    (table,) = struct.unpack_from(form, header, place)  # e_phoff
    size, count = struct.unpack_from("=HH", header, counts)  # e_phentsize, e_phnum
    if size != struct.calcsize(segment) or count > MAX_SEGMENTS:
        raise ValueError("its program headers are odd")
    found = []
    for fields in struct.iter_unpack(segment, _piece(file, size * count, table)):
        # 64 bits: type, flags, offset, address, physical, size in the file, ...; 32 bits have the flags further on.
        kind, offset, address, _, in_file = fields[:5] if header[4] == CLASS32 else (fields[0], *fields[2:6])
        found.append((kind, offset, address, in_file))
    end = os.fstat(file.fileno()).st_size
    if any(kind == PT_LOAD and offset + in_file > end for kind, offset, _, in_file in found):
        raise ValueError("it is shorter than its own headers say")
    return found


def _piece(file: BinaryIO, size: int, offset: int) -> bytes:
    if offset > os.fstat(file.fileno()).st_size:  # or lseek(2) takes a huge one for a negative number
        raise ValueError("an offset in it is beyond its end")
    file.seek(offset)
    return file.read(size)


def _tags(table: bytes, form: str) -> dict[int, int]:
    tags: dict[int, int] = {}
    size = struct.calcsize(form)
    for tag, value in struct.iter_unpack(form, table[: len(table) // size * size]):
        if tag == DT_NULL:
            return tags
        tags[tag] = value
    raise ValueError("its dynamic segment does not end")
