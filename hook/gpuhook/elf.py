"""Read one note of a shared library that an image brings: nothing in it is believed, and little of it is read.

Layout: elf(5). Only 64-bit little-endian files, as NVIDIA's machines are. Read are the header, the table of
sections, their names and the note itself: at most 144 KiB at places that lie inside the file, whatever it says.
Out of scope: what a note means (compat.py), segments, symbols.

Hot path: builtin modules only; five reads.
"""

from __future__ import annotations

import posix

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
SECTION_LIMIT = 256  # sections; a libcuda has about 40
NAMES_LIMIT = 1 << 16  # bytes
NOTE_LIMIT = 1 << 16  # bytes
_IDENT = b"\x7fELF\x02\x01"  # ELFCLASS64, ELFDATA2LSB
_HEADER, _SECTION, _NOTE = 64, 64, 12  # bytes of Elf64_Ehdr, Elf64_Shdr, Elf64_Nhdr
_SHARED = 3  # ET_DYN
_STRINGS, _NOTES = 3, 7  # SHT_STRTAB, SHT_NOTE


def note(fd: int, size: int, machine: str, section: bytes, owner: bytes) -> bytes | None:
    """Read the first note of a section.

    Args:
        fd: the library, open for reading.
        size: bytes of the file.
        machine: what the library must be for, as uname(2) calls it.
        section: name of the section.
        owner: name that the note must have.

    Returns:
        the note's descriptor without the NULs around it, or None if the library has no such note.

    Raises:
        ValueError: it is no such library, or damaged.
        OSError: it cannot be read.
    """
    header = _piece(fd, size, 0, _HEADER)
    if not header.startswith(_IDENT):
        raise ValueError("it is not a 64-bit little-endian ELF file")
    if _number(header, 16, 2) != _SHARED or _number(header, 18, 2) != MACHINES.get(machine):
        raise ValueError(f"it is not a shared library for {machine}")
    where = _section(fd, size, header, section)
    if where is None:
        return None
    data = _piece(fd, size, *where)
    name_size, size_left = _number(data, 0, 4), _number(data, 4, 4)
    if _NOTE + name_size + size_left > len(data):
        raise ValueError(f"{str(section, 'ascii')} is longer than its section")
    if data[_NOTE : _NOTE + name_size].rstrip(b"\0") != owner:
        return None
    # Where the descriptor begins depends on an alignment that tools do not agree about: NULs lie before it.
    return data[_NOTE + name_size :].lstrip(b"\0")[:size_left].rstrip(b"\0")


def _section(fd: int, size: int, header: bytes, name: bytes) -> tuple[int, int] | None:
    """Find the section of notes with a name: its offset and size."""
    table, entry, count, names = (_number(header, *place) for place in ((40, 8), (58, 2), (60, 2), (62, 2)))
    if not count:
        return None
    if entry != _SECTION or count > SECTION_LIMIT or names >= count:
        raise ValueError("its table of sections is odd")
    sections = _piece(fd, size, table, _SECTION * count)
    at = _SECTION * names
    where, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
    if _number(sections, at + 4, 4) != _STRINGS or length > NAMES_LIMIT:
        raise ValueError("the names of its sections are odd")
    strings = _piece(fd, size, where, length)
    for at in range(0, len(sections), _SECTION):
        if _number(sections, at + 4, 4) == _NOTES and strings.startswith(name + b"\0", _number(sections, at, 4)):
            where, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
            if not _NOTE <= length <= NOTE_LIMIT:
                raise ValueError(f"{str(name, 'ascii')} has {length} bytes")
            return where, length
    return None


def _piece(fd: int, size: int, offset: int, length: int) -> bytes:
    # Compared with the file's size first, a huge offset never gets to pread(2), which would take it for negative.
    data = posix.pread(fd, length, offset) if offset + length <= size else b""
    if len(data) != length:
        raise ValueError("it is shorter than its own headers say")
    return data


def _number(data: bytes, offset: int, length: int) -> int:
    return int.from_bytes(data[offset : offset + length], "little")
