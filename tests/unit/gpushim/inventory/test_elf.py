"""Reading a SONAME, from real libraries and from broken ones."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

import fakehost
from gpushim.inventory import elf


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(fakehost.build(str(tmp_path_factory.mktemp("host")), 1).lib_path)


@pytest.mark.parametrize(
    ("name", "soname"),
    [
        ("libcuda.so.535.183.01", "libcuda.so.1"),
        ("libnvidia-nvvm.so.535.183.01", "libnvidia-nvvm.so.4"),
        ("libnvidia-gpucomp.so.535.183.01", "libnvidia-gpucomp.so.535.183.01"),
    ],
)
def test_reads_the_soname(libraries: Path, name: str, soname: str) -> None:
    assert elf.soname(str(libraries / name)) == soname


def test_program_has_none() -> None:
    assert elf.soname("/usr/bin/python3") == ""


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(60), b"#!/bin/sh\n" * 10])
def test_not_a_library(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="it "):
        elf.soname(str(tmp_path / "x"))


def test_every_truncation_is_refused_or_right(libraries: Path, tmp_path: Path) -> None:
    data = (libraries / "libnvidia-nvvm.so.535.183.01").read_bytes()
    for size in range(0, len(data), 61):
        (tmp_path / "x").write_bytes(data[:size])
        try:
            assert elf.soname(str(tmp_path / "x")) == "libnvidia-nvvm.so.4"
        except ValueError:
            pass


def test_library_that_lacks_its_last_byte_is_refused(libraries: Path, tmp_path: Path) -> None:
    data = (libraries / "libnvidia-nvvm.so.535.183.01").read_bytes()
    segments = struct.iter_unpack("=IIQQQQQQ", data[64 : 64 + 56 * struct.unpack_from("=H", data, 56)[0]])
    end = max(offset + size for kind, _, offset, _, _, size, *_ in segments if kind == elf.PT_LOAD)
    (tmp_path / "x").write_bytes(data[:end])
    assert elf.soname(str(tmp_path / "x")) == "libnvidia-nvvm.so.4"
    (tmp_path / "x").write_bytes(data[: end - 1])
    with pytest.raises(ValueError, match="shorter than its own headers say"):
        elf.soname(str(tmp_path / "x"))


@pytest.mark.parametrize("value", [0x01, 0xFF])
def test_no_changed_byte_of_the_headers_does_harm(libraries: Path, tmp_path: Path, value: int) -> None:
    data = (libraries / "libnvidia-nvvm.so.535.183.01").read_bytes()
    (tmp_path / "x").write_bytes(data)
    with open(tmp_path / "x", "r+b", buffering=0) as file:
        for offset in range(64 + 56 * 12):
            os.pwrite(file.fileno(), bytes([value]), offset)
            try:
                assert isinstance(elf.soname(str(tmp_path / "x")), str)
            except ValueError:
                pass
            os.pwrite(file.fileno(), data[offset : offset + 1], offset)


def test_offset_beyond_any_file(tmp_path: Path) -> None:
    header = bytearray(elf.IDENT + bytes(58))
    struct.pack_into("=Q", header, 32, (1 << 64) - 1)
    struct.pack_into("=HH", header, 54, 56, 1)
    (tmp_path / "x").write_bytes(header)
    with pytest.raises(ValueError, match="odd"):
        elf.soname(str(tmp_path / "x"))
