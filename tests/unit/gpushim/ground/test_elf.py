"""SONAMEs and notes: of real libraries, and of what an attacker makes of them."""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushim.ground import bounds, elf, machines
from unit.gpuhook.notes import OWNER, SECTION, library

MACHINE = platform.machine()
TEXT = '{"Format": 1}'


def pieces(data: bytes) -> Callable[[int, int], bytes]:
    return lambda at, length: data[at : at + length]


def read(data: bytes, machine: str = MACHINE) -> bytes | None:
    return elf.note(pieces(data), len(data), machine, SECTION.encode(), OWNER.encode())


def put(data: bytes, offset: int, form: str, number: int) -> bytes:
    """Write a number into a copy."""
    copy = bytearray(data)
    struct.pack_into("<" + form, copy, offset, number)
    return bytes(copy)


def field(data: bytes, offset: int, form: str) -> int:
    return int(struct.unpack_from("<" + form, data, offset)[0])


def section(data: bytes, kind: int) -> int:
    """Find where the header of our note's section (kind 7), or of the section names (kind 3), is."""
    table, names = field(data, 40, "Q"), field(data, 62, "H")
    at = table + 64 * names
    if kind == 7:
        strings = data[field(data, at + 24, "Q") :]
        at = table
        while not strings[field(data, at, "I") :].startswith(SECTION.encode()):
            at += 64
    return at


@pytest.mark.parametrize("align", [4, 8, 16])
@pytest.mark.parametrize("text", [TEXT, TEXT + "\0", TEXT + " " * 60_000])
def test_a_real_note(align: int, text: str) -> None:
    assert read(library(text, align=align)) == text.rstrip("\0").encode()


@pytest.mark.parametrize(
    "data",
    [
        library(),
        library(TEXT, owner="GNU"),
        library(TEXT, owner="NVIDIA Corporation 2"),
        library(TEXT, section=SECTION + "2"),
        put(library(TEXT), 60, "H", 0),
        put(library(TEXT), section(library(TEXT), 7) + 4, "I", 1),
    ],
    ids=["no note", "other owner", "longer owner", "other section", "no sections", "not of type note"],
)
def test_without_our_note(data: bytes) -> None:
    assert read(data) is None


def test_readelf_sees_the_same(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(library(TEXT))
    argv = ["/usr/bin/readelf", "-p", SECTION, str(tmp_path / "lib")]
    assert TEXT in subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def odd(data: bytes) -> dict[str, bytes]:
    note, names = section(data, 7), section(data, 3)
    at = field(data, note + 24, "Q")
    return {
        "empty": b"",
        "magic only": data[:4],
        "header only": data[:64],
        "32 bits": put(data, 4, "B", 1),
        "big endian": put(data, 5, "B", 2),
        "a program": put(data, 16, "H", 2),
        "other machine": put(data, 18, "H", 40),
        "table of sections at 2^63": put(data, 40, "Q", 1 << 63),
        "table of sections at 2^64-1": put(data, 40, "Q", (1 << 64) - 1),
        "table of sections at the end": put(data, 40, "Q", len(data)),
        "huge entries": put(data, 58, "H", 0xFFFF),
        "tiny entries": put(data, 58, "H", 0),
        "65535 sections": put(data, 60, "H", 0xFFFF),
        "257 sections": put(data, 60, "H", 257) + bytes(64 * 257),
        "names in no section": put(data, 62, "H", 0xFFFF),
        "names are no strings": put(data, names + 4, "I", 1),
        "names at 2^63": put(data, names + 24, "Q", 1 << 63),
        "names of 2^63 bytes": put(data, names + 32, "Q", 1 << 63),
        "names of 1 MiB": put(data, names + 32, "Q", 1 << 20) + bytes(1 << 20),
        "note at 2^63": put(data, note + 24, "Q", 1 << 63),
        "note at 2^64-1": put(data, note + 24, "Q", (1 << 64) - 1),
        "note of 2^63 bytes": put(data, note + 32, "Q", 1 << 63),
        "note of 65 KiB": put(data, note + 32, "Q", 65 << 10) + bytes(1 << 20),
        "note of 3 bytes": put(data, note + 32, "Q", 3),
        "owner beyond the note": put(data, at, "I", 1 << 31),
        "descriptor beyond the note": put(data, at + 4, "I", (1 << 32) - 1),
    }


@pytest.mark.parametrize("case", odd(library(TEXT)))
def test_odd_files_are_refused(case: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(odd(library(TEXT))[case])


def test_an_unknown_machine_has_no_libraries() -> None:
    with pytest.raises(ValueError, match="for another machine"):
        read(library(TEXT), "riscv64")


def test_cut_at_every_byte_of_the_tables() -> None:
    data = library(TEXT)
    for end in {*range(64), *range(field(data, 40, "Q"), len(data))}:
        with pytest.raises(ValueError, match=r"."):
            read(data[:end])


def test_a_sparse_file_of_terabytes_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lib"
    path.write_bytes(put(library(TEXT), 40, "Q", (1 << 42) - 64 * 200))
    os.truncate(path, 1 << 42)
    sizes = []

    def read(at: int, size: int) -> bytes:
        sizes.append(size)
        return os.pread(file.fileno(), size, at)

    with path.open("rb") as file, pytest.raises(ValueError, match="odd"):
        elf.note(read, 1 << 42, MACHINE, SECTION.encode(), OWNER.encode())
    assert 0 < sum(sizes) < 1 << 16


@settings(max_examples=300)
@given(st.data())
def test_flipped_words_never_crash(data: Any) -> None:
    whole = library(TEXT)
    table, note = field(whole, 40, "Q"), field(whole, section(whole, 7) + 24, "Q")
    places = st.one_of(st.integers(0, 60), st.integers(table, len(whole) - 8), st.integers(note, note + 12))
    for _ in range(data.draw(st.integers(1, 4))):
        whole = put(whole, data.draw(places), "I", data.draw(st.integers(0, (1 << 32) - 1)))
    try:
        found = read(whole)
    except ValueError:
        return
    assert found is None or len(found) <= bounds.COMPAT_NOTE


def built(soname: str, *words: str) -> bytes:
    """Make a small library."""
    name = [f"-Wl,-soname,{soname}"] if soname else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lib"
        command = ["/usr/bin/gcc", *words, "-shared", "-nostdlib", *name, "-x", "c", "/dev/null", "-o", str(path)]
        subprocess.run(command, check=True)
        return path.read_bytes()


def soname(data: bytes, machine: str = MACHINE) -> tuple[str, bytes]:
    return elf.soname(pieces(data), len(data), [machine, machines.COMPANIONS.get(machine, "")])


WIDE, NARROW = built("libcuda.so.1"), built("libcuda.so.1", "-m32")


def test_the_soname_of_real_libraries() -> None:
    assert soname(WIDE) == (MACHINE, b"libcuda.so.1")
    assert soname(NARROW) == ("i386", b"libcuda.so.1")
    assert soname(built("")) == (MACHINE, b"")
    assert soname(built("", "-m32")) == ("i386", b"")


@pytest.mark.parametrize("data", [WIDE, NARROW], ids=["64", "32"])
def test_libraries_of_other_machines_have_none(data: bytes) -> None:
    for machine in ("aarch64", "riscv64"):
        with pytest.raises(elf.ForeignError):
            soname(data, machine)


@pytest.mark.parametrize("data", [WIDE, NARROW], ids=["64", "32"])
def test_a_program_counts_only_where_it_may(data: bytes) -> None:
    program = put(data, 16, "H", 2)  # ET_EXEC
    with pytest.raises(ValueError, match="not a shared library"):
        soname(program)
    assert elf.soname(pieces(program), len(data), [MACHINE, "i386"], program=True)[1] == b"libcuda.so.1"


@pytest.mark.parametrize(("data", "place"), [(WIDE, 32), (NARROW, 28)], ids=["64", "32"])
def test_segments_beyond_any_file(data: bytes, place: int) -> None:
    with pytest.raises(ValueError, match="shorter than its own headers say"):
        soname(put(data, place, "I", (1 << 32) - 1))


@pytest.mark.parametrize("data", [WIDE, NARROW], ids=["64", "32"])
def test_a_soname_cut_at_every_offset(data: bytes) -> None:
    for end in range(0, len(data), 7):
        try:
            assert soname(data[:end])[1] == b"libcuda.so.1"
        except ValueError:
            pass


@pytest.mark.parametrize("data", [WIDE, NARROW], ids=["64", "32"])
@given(changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=6))
def test_flipped_bytes_never_crash(data: bytes, changes: list[tuple[int, int]]) -> None:
    copy = bytearray(data)
    for at, value in changes:
        copy[at] = value
    try:
        machine, name = soname(bytes(copy))
    except ValueError:
        return
    assert machine in (MACHINE, "i386")
    assert len(name) < 256
