"""Which programs qemu's user emulation is asked to run while an emulated machine's disk is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fakehost import smallelf
from machine.processors import AMD64, ARM64


def taken(header: bytes) -> bool:
    """Compare as the kernel does, by the rule's magic and mask (binfmt_misc)."""
    name, kind, offset, magic, mask, interpreter, flags = ARM64.rule("x").decode().split(":")[1:]
    assert (name, kind, offset, interpreter, flags) == ("x", "M", "0", "/usr/bin/qemu-aarch64-static", "F")
    wanted, masked = (bytes.fromhex(each.replace("\\x", "")) for each in (magic, mask))
    assert len(wanted) == len(masked)
    return all((one ^ other) & bits == 0 for one, other, bits in zip(header, wanted, masked))


@pytest.mark.parametrize("kind", [2, 3])  # ET_EXEC, ET_DYN
@pytest.mark.parametrize("machine", smallelf.MACHINES)
def test_programs_of_the_emulated_processor_alone(machine: str, kind: int) -> None:
    header = bytearray(smallelf.library(machine, "libx.so.1"))
    header[16] = kind
    assert taken(bytes(header)) == (machine == ARM64.machine)


def test_what_this_computer_runs_needs_no_emulation() -> None:
    with AMD64.runs():
        assert Path(sys.executable).exists()
    assert AMD64.elf == b""
