"""SONAMEs of the host's libraries; what is wrong with broken ones is in test_elf.py."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

import fakehost
from fakehost import smallelf
from gpushim.ground.elf import ForeignError
from gpushim.inventory.loader import soname


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(fakehost.build(str(tmp_path_factory.mktemp("host")), 1).lib_path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("libcuda.so.535.183.01", "libcuda.so.1"),
        ("libnvidia-nvvm.so.535.183.01", "libnvidia-nvvm.so.4"),
        ("libnvidia-gpucomp.so.535.183.01", "libnvidia-gpucomp.so.535.183.01"),
    ],
)
def test_reads_the_soname(libraries: Path, name: str, wanted: str) -> None:
    assert soname(str(libraries / name)) == wanted


def test_program_has_none() -> None:
    assert soname("/usr/bin/python3") == ""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "i386"])
@pytest.mark.parametrize("name", ["libcuda.so.1", ""])
def test_every_machine(tmp_path: Path, machine: str, name: str) -> None:
    (tmp_path / "x").write_bytes(smallelf.library(machine, name))
    assert soname(str(tmp_path / "x"), machine) == name


def test_32_bit_library_of_a_real_linker(tmp_path: Path) -> None:
    source, output = tmp_path / "a.c", tmp_path / "a.so"
    source.write_text("int f(void) { return 0; }\n")
    command = ["gcc", "-m32", "-nostdlib", "-fPIC", "-shared", "-Wl,-soname,liba.so.3", "-o", output, source]
    subprocess.run([str(word) for word in command], check=True)
    assert soname(str(output), "i386") == "liba.so.3"
    with pytest.raises(ForeignError, match="another machine"):
        soname(str(output), "x86_64")


def test_32_bits_of_a_64_bit_machine_are_foreign(tmp_path: Path) -> None:
    data = bytearray(smallelf.library("i386", "libcuda.so.1"))
    struct.pack_into("<H", data, 18, smallelf.MACHINES["x86_64"][1])  # x32 is such
    (tmp_path / "x").write_bytes(data)
    for machine in ("x86_64", "i386"):
        with pytest.raises(ForeignError):
            soname(str(tmp_path / "x"), machine)


def test_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(ValueError, match="not an ELF file"):
        soname(str(tmp_path / "x"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b"])
def test_soname_that_is_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(smallelf.library("x86_64", name))
    with pytest.raises(ValueError, match="its SONAME is a path"):
        soname(str(tmp_path / "x"), "x86_64")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(60), b"#!/bin/sh\n" * 10])
def test_not_a_library(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="it "):
        soname(str(tmp_path / "x"))


def test_library_that_lacks_its_last_byte_is_refused(libraries: Path, tmp_path: Path) -> None:
    data = (libraries / "libnvidia-nvvm.so.535.183.01").read_bytes()
    segments = struct.iter_unpack("=IIQQQQQQ", data[64 : 64 + 56 * struct.unpack_from("=H", data, 56)[0]])
    end = max(offset + size for kind, _, offset, _, _, size, *_ in segments if kind == 1)
    (tmp_path / "x").write_bytes(data[:end])
    assert soname(str(tmp_path / "x")) == "libnvidia-nvvm.so.4"
    (tmp_path / "x").write_bytes(data[: end - 1])
    with pytest.raises(ValueError, match="shorter than its own headers say"):
        soname(str(tmp_path / "x"))
