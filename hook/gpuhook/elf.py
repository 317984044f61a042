"""Read one note, or the SONAME, of a library in an image: nothing in it is believed, and little of it is read.

Layout: elf(5). Only little-endian files, as NVIDIA's machines are. Read are, for a note, the header, the table of
sections, their names and the note itself: at most 144 KiB at places that lie inside the file, whatever it says;
for a SONAME the header, the table of segments, the dynamic segment and the name: at most 79 KiB.
Out of scope: what a note means (compat.py), symbols.

Hot path: builtin modules only; five reads.
"""

from __future__ import annotations

import posix

from gpushim import bounds

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
MACHINES32 = {"x86_64": 3}  # EM_386, whose programs run there too
_IDENT = b"\x7fELF\x02\x01"  # ELFCLASS64, ELFDATA2LSB
_IDENT32 = b"\x7fELF\x01\x01"  # ELFCLASS32, ELFDATA2LSB
_HEADER, _SECTION, _NOTE = 64, 64, 12  # bytes of Elf64_Ehdr, Elf64_Shdr, Elf64_Nhdr
_SHARED = 3  # ET_DYN
_STRINGS, _NOTES = 3, 7  # SHT_STRTAB, SHT_NOTE
_LOAD, _DYNAMIC = 1, 2  # PT_LOAD, PT_DYNAMIC
_STRTAB, _SONAME = 5, 14  # DT_STRTAB, DT_SONAME


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


def soname(fd: int, size: int, machine: str) -> tuple[int, bytes]:
    """Read the SONAME of a shared library.

    Args:
        fd: the library, open for reading.
        size: bytes of the file.
        machine: what the library must be for, as uname(2) calls it.

    Returns:
        32 or 64, and the SONAME; b"" if it has none.

    Raises:
        ValueError: it is no such library, or damaged.
        OSError: it cannot be read.
    """
    header = _piece(fd, size, 0, _HEADER)
    wide = header.startswith(_IDENT)
    machines, bits, word = (MACHINES, 64, 8) if wide else (MACHINES32, 32, 4)
    if not wide and not header.startswith(_IDENT32):
        raise ValueError("it is not a little-endian ELF file")
    if _number(header, 16, 2) != _SHARED or _number(header, 18, 2) != machines.get(machine):
        raise ValueError(f"it is not a shared library for {machine}")
    segments = _segments(fd, size, header, wide)
    for kind, offset, _, length in segments:
        if kind == _DYNAMIC and length <= bounds.ELF_DYNAMIC:
            data = _piece(fd, size, offset, length)
            entries = [(_number(data, at, word), _number(data, at + word, word)) for at in range(0, length, 2 * word)]
            tags = dict(entries[: next((i for i, (tag, _) in enumerate(entries) if not tag), None)])
            break
    else:
        raise ValueError("it has no dynamic segment of a sensible size")
    if _SONAME not in tags:
        return bits, b""
    strings = tags.get(_STRTAB, 0)
    for kind, offset, address, length in segments:
        if kind == _LOAD and address <= strings < address + length:
            at = strings - address + offset + tags[_SONAME]
            name, end, _ = _piece(fd, size, at, min(bounds.ELF_SONAME + 1, max(size - at, 1))).partition(b"\0")
            if not end:
                raise ValueError("its SONAME does not end")
            return bits, name
    raise ValueError("its strings are not in the file")


def _segments(fd: int, size: int, header: bytes, wide: bool) -> list[tuple[int, int, int, int]]:
    """List a library's segments: type, offset, address, bytes in the file."""
    places = ((32, 8), (54, 2), (56, 2)) if wide else ((28, 4), (42, 2), (44, 2))
    table, entry, count = (_number(header, *place) for place in places)
    if entry != (56 if wide else 32) or count > bounds.ELF_SEGMENTS:
        raise ValueError("its table of segments is odd")
    data = _piece(fd, size, table, entry * count)
    fields = ((0, 4), (8, 8), (16, 8), (32, 8)) if wide else ((0, 4), (4, 4), (8, 4), (16, 4))
    return [
        tuple([_number(data, at + offset, length) for offset, length in fields])  # type: ignore[misc]
        for at in range(0, len(data), entry)
    ]


def _section(fd: int, size: int, header: bytes, name: bytes) -> tuple[int, int] | None:
    """Find the section of notes with a name: its offset and size."""
    table, entry, count, names = (_number(header, *place) for place in ((40, 8), (58, 2), (60, 2), (62, 2)))
    if not count:
        return None
    if entry != _SECTION or count > bounds.ELF_SECTIONS or names >= count:
        raise ValueError("its table of sections is odd")
    sections = _piece(fd, size, table, _SECTION * count)
    at = _SECTION * names
    where, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
    if _number(sections, at + 4, 4) != _STRINGS or length > bounds.ELF_NAMES:
        raise ValueError("the names of its sections are odd")
    strings = _piece(fd, size, where, length)
    for at in range(0, len(sections), _SECTION):
        if _number(sections, at + 4, 4) == _NOTES and strings.startswith(name + b"\0", _number(sections, at, 4)):
            where, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
            if not _NOTE <= length <= bounds.COMPAT_NOTE:
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
