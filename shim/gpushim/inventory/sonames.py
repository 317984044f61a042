"""Read the SONAMEs of the host's libraries.

Out of scope: ELF (gpushim.ground.elf).
"""

from __future__ import annotations

import os
import platform

from gpushim.ground import elf
from gpushim.paths import rooted


def soname(path: str, machine: str = "") -> str:
    """Read a library's SONAME, "" if it has none; `machine` is one of elf.MACHINES, "" for this one.

    Raises:
        ForeignError: it is for another machine.
        ValueError: it is no ELF library, or damaged.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0, opener=rooted.nonblocking) as file:

        def read(offset: int, length: int) -> bytes:
            if offset:  # a FIFO, which cannot seek, is refused for its first bytes
                file.seek(offset)
            return file.read(length)

        size = os.fstat(file.fileno()).st_size
        _, name = elf.soname(read, size, [machine or platform.machine()], program=True)
    if b"/" in name:
        raise ValueError("its SONAME is a path")
    return name.decode("ascii", "strict")
