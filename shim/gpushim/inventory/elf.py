"""Read the SONAME of a shared library.

Layout: elf(5). Only 64-bit files of our own byte order, which is what a driver's libraries are.
Out of scope: sections, symbols, and anything that the dynamic segment does not say.
"""

from __future__ import annotations

import os
import struct
import sys

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_STRTAB, DT_SONAME = 0, 5, 14
IDENT = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02")
HEADER, SEGMENT, ENTRY = 64, 56, 16  # bytes
MAX_SEGMENTS = 256
MAX_DYNAMIC = 1 << 16  # bytes; real ones have well under a kilobyte
MAX_NAME = 256


def soname(path: str) -> str:
    """Read a library's SONAME.

    Args:
        path: of a regular file on the host.

    Returns:
        the SONAME, "" if it has none.

    Raises:
        ValueError: it is not such a library, or it is damaged.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _soname(fd)
    except struct.error:
        raise ValueError("it ends too early") from None
    finally:
        os.close(fd)


def _soname(fd: int) -> str:
    header = os.pread(fd, HEADER, 0)
    if not header.startswith(IDENT):
        raise ValueError("it is not a 64-bit ELF file of this byte order")
    (table,) = struct.unpack_from("=Q", header, 32)  # e_phoff
    size, count = struct.unpack_from("=HH", header, 54)  # e_phentsize, e_phnum
    if size != SEGMENT or count > MAX_SEGMENTS or table >= 1 << 62:
        raise ValueError("its program headers are odd")
    # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
    segments = list(struct.iter_unpack("=IIQQQQQQ", os.pread(fd, SEGMENT * count, table)))
    if any(kind == PT_LOAD and offset + size > os.fstat(fd).st_size for kind, _, offset, _, _, size, *_ in segments):
        raise ValueError("it is shorter than its own headers say")
    dynamic = next((segment for segment in segments if segment[0] == PT_DYNAMIC), None)
    if dynamic is None or dynamic[5] > MAX_DYNAMIC:
        raise ValueError("it has no dynamic segment of a sensible size")
    tags = _tags(_piece(fd, dynamic[5] // ENTRY * ENTRY, dynamic[2]))
    if DT_SONAME not in tags:
        return ""
    strings = tags.get(DT_STRTAB, 0)
    for kind, _flags, offset, address, _physical, in_file, _in_memory, _align in segments:
        if kind == PT_LOAD and address <= strings < address + in_file:
            name, end, _ = _piece(fd, MAX_NAME, strings - address + offset + tags[DT_SONAME]).partition(b"\0")
            if not end:
                raise ValueError("its SONAME does not end")
            return name.decode("ascii", "strict")
    raise ValueError("its string table is not in the file")


def _piece(fd: int, size: int, offset: int) -> bytes:
    if offset >= 1 << 62:  # pread(2) would take it for a negative number
        raise ValueError("an offset in it is beyond any file")
    return os.pread(fd, size, offset)


def _tags(table: bytes) -> dict[int, int]:
    tags: dict[int, int] = {}
    for tag, value in struct.iter_unpack("=qQ", table):
        if tag == DT_NULL:
            return tags
        tags[tag] = value
    raise ValueError("its dynamic segment does not end")
