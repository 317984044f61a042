"""Read the SONAME, or one note, of an untrusted library, and little of it.

Layout: elf(5). Only little-endian files, as NVIDIA's machines are. For a SONAME, the header, the table of segments,
the dynamic segment and the name are read: at most 79 KiB. For a note, the header, the table of sections, their names
and the note: at most 144 KiB. The hook imports this: siblings only.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.machines import ELF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Callable

    Read = Callable[[int, int], bytes]  # takes an offset and a length

_HEADER, _SECTION, _NOTE = 64, 64, 12  # bytes of Elf64_Ehdr, Elf64_Shdr, Elf64_Nhdr
_SHARED = 3  # ET_DYN
_STRINGS, _NOTES = 3, 7  # SHT_STRTAB, SHT_NOTE
_LOAD, _DYNAMIC = 1, 2  # PT_LOAD, PT_DYNAMIC
_STRTAB, _SONAME = 5, 14  # DT_STRTAB, DT_SONAME


class ForeignError(ValueError):
    """An undamaged library for another machine."""


def soname(read: Read, size: int, machines: Iterable[str], program: bool = False) -> tuple[str, bytes]:
    """Return the machine and the SONAME, b"" if it has none, of a shared library.

    Args:
        machines: that it may be for, as ELF names them (machines.py).
        program: whether a program does as well.

    Raises:
        ForeignError: it is for another machine.
        ValueError: it is no such library, or damaged.
        OSError: it cannot be read.
    """
    header, machine = _header(read, size, machines, program)
    segments = _segments(read, size, header)
    tags = _tags(read, size, segments, 8 if header[4] == 2 else 4)
    if _SONAME not in tags:
        return machine, b""
    strings = tags.get(_STRTAB, 0)
    for kind, offset, address, length in segments:
        if kind == _LOAD and address <= strings < address + length:
            at = strings - address + offset + tags[_SONAME]
            name, end, _ = _piece(read, size, at, min(bounds.ELF_SONAME + 1, max(size - at, 1))).partition(b"\0")
            if not end:
                raise ValueError("its SONAME does not end")
            return machine, name
    raise ValueError("its strings are not in the file")


def note(read: Read, size: int, machine: str, section: bytes, owner: bytes) -> bytes | None:
    """Return the descriptor of the first note in a section of a 64-bit library, without the NULs around it.

    Args:
        machine: that it must be for, as uname(2) calls it.
        owner: name that the note must have; None is returned for another's.

    Raises:
        ValueError: it is no such library, or damaged.
        OSError: it cannot be read.
    """
    header, _ = _header(read, size, [machine])
    position = _section(read, size, header, section)
    if position is None:
        return None
    data = _piece(read, size, *position)
    name_size, size_left = _number(data, 0, 4), _number(data, 4, 4)
    if _NOTE + name_size + size_left > len(data):
        raise ValueError(f"{str(section, 'ascii')} is longer than its section")
    if data[_NOTE : _NOTE + name_size].rstrip(b"\0") != owner:
        return None
    # Where the descriptor begins depends on an alignment that tools do not agree about: NULs lie before it.
    return data[_NOTE + name_size :].lstrip(b"\0")[:size_left].rstrip(b"\0")


def _header(read: Read, size: int, machines: Iterable[str], program: bool = False) -> tuple[bytes, str]:
    header = read(0, _HEADER)
    if not header.startswith(b"\x7fELF") or len(header) < _HEADER or header[4] not in (1, 2) or header[5] != 1:
        raise ValueError("it is not an ELF file of this byte order")
    kind = header[4], _number(header, 18, 2)
    for machine in machines:
        if ELF.get(machine) == kind:
            if _number(header, 16, 2) != _SHARED and not program:
                raise ValueError("it is not a shared library")
            return header, machine
    raise ForeignError(f"it is a library for another machine (class {kind[0]}, machine {kind[1]})")


def _segments(read: Read, size: int, header: bytes) -> list[tuple[int, int, int, int]]:
    """List a library's segments: type, offset, address, bytes in the file."""
    wide = header[4] == 2
    positions = ((32, 8), (54, 2), (56, 2)) if wide else ((28, 4), (42, 2), (44, 2))
    table, entry, count = (_number(header, *position) for position in positions)
    if entry != (56 if wide else 32) or count > bounds.ELF_SEGMENTS:
        raise ValueError("its table of segments is odd")
    data = _piece(read, size, table, entry * count)
    fields = ((0, 4), (8, 8), (16, 8), (32, 8)) if wide else ((0, 4), (4, 4), (8, 4), (16, 4))
    segments: list[tuple[int, int, int, int]] = [
        tuple([_number(data, at + offset, length) for offset, length in fields])  # type: ignore[misc]
        for at in range(0, len(data), entry)
    ]
    if any(kind == _LOAD and offset + length > size for kind, offset, _, length in segments):
        raise ValueError("it is shorter than its own headers say")
    return segments


def _tags(read: Read, size: int, segments: list[tuple[int, int, int, int]], word: int) -> dict[int, int]:
    """Return the entries of the dynamic segment; of two with one tag the last counts."""
    offset, length = next(((offset, length) for kind, offset, _, length in segments if kind == _DYNAMIC), (0, 0))
    if not 0 < length <= bounds.ELF_DYNAMIC:
        raise ValueError("it has no dynamic segment of a sensible size")
    data = _piece(read, size, offset, length)
    tags: dict[int, int] = {}
    for at in range(0, length - word, 2 * word):
        tag = _number(data, at, word)
        if not tag:
            return tags
        tags[tag] = _number(data, at + word, word)
    raise ValueError("its dynamic segment does not end")


def _section(read: Read, size: int, header: bytes, name: bytes) -> tuple[int, int] | None:
    table, entry, count, names = (_number(header, *field) for field in ((40, 8), (58, 2), (60, 2), (62, 2)))
    if not count:
        return None
    if entry != _SECTION or count > bounds.ELF_SECTIONS or names >= count:
        raise ValueError("its table of sections is odd")
    sections = _piece(read, size, table, _SECTION * count)
    at = _SECTION * names
    offset, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
    if _number(sections, at + 4, 4) != _STRINGS or length > bounds.ELF_NAMES:
        raise ValueError("the names of its sections are odd")
    strings = _piece(read, size, offset, length)
    for at in range(0, len(sections), _SECTION):
        if _number(sections, at + 4, 4) == _NOTES and strings.startswith(name + b"\0", _number(sections, at, 4)):
            offset, length = _number(sections, at + 24, 8), _number(sections, at + 32, 8)
            if not _NOTE <= length <= bounds.COMPAT_NOTE:
                raise ValueError(f"{str(name, 'ascii')} has {length} bytes")
            return offset, length
    return None


def _piece(read: Read, size: int, offset: int, length: int) -> bytes:
    # Compared with the file's size first, a huge offset never gets to pread(2), which would take it for negative.
    data = read(offset, length) if offset + length <= size else b""
    if len(data) != length:
        raise ValueError("it is shorter than its own headers say")
    return data


def _number(data: bytes, offset: int, length: int) -> int:
    return int.from_bytes(data[offset : offset + length], "little")
