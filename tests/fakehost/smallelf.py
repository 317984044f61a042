"""Write the smallest shared library that a reader of SONAMEs and ldconfig take for one, for any machine.

For libraries that no program here can load: 32-bit ones, and those of other machines. Out of scope: code, symbols.
"""

from __future__ import annotations

import struct

MACHINES = {"x86_64": (2, 62), "aarch64": (2, 183), "i386": (1, 3)}  # class and e_machine, elf(5)
DYNAMIC = 0x200  # offset of the dynamic segment
STRINGS = 0x300  # of its string table
PT_LOAD, PT_DYNAMIC, ET_DYN = 1, 2, 3
DT_NULL, DT_STRTAB, DT_STRSZ, DT_SONAME = 0, 5, 10, 14
READ = 4  # PF_R


def library(machine: str, soname: str) -> bytes:
    """Return a little-endian ELF library for a machine, with this SONAME; "" for none."""
    bits, number = MACHINES[machine]
    strings = b"\0" + soname.encode() + b"\0"
    size = STRINGS + len(strings)
    tags = [(DT_SONAME, 1)] if soname else []
    tags += [(DT_STRTAB, STRINGS), (DT_STRSZ, len(strings)), (DT_NULL, 0)]
    if bits == 2:
        dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
        header = struct.pack("<HHIQQQIHHHHHH", ET_DYN, number, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
        segments = struct.pack("<IIQQQQQQ", PT_LOAD, READ, 0, 0, 0, size, size, 4096)
        segments += struct.pack("<IIQQQQQQ", PT_DYNAMIC, READ, *[DYNAMIC] * 3, *[len(dynamic)] * 2, 8)
    else:
        dynamic = b"".join(struct.pack("<iI", *tag) for tag in tags)
        header = struct.pack("<HHIIIIIHHHHHH", ET_DYN, number, 1, 0, 52, 0, 0, 52, 32, 2, 40, 0, 0)
        segments = struct.pack("<8I", PT_LOAD, 0, 0, 0, size, size, READ, 4096)
        segments += struct.pack("<8I", PT_DYNAMIC, *[DYNAMIC] * 3, *[len(dynamic)] * 2, READ, 4)
    front = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + header + segments
    return front.ljust(DYNAMIC, b"\0") + dynamic.ljust(STRINGS - DYNAMIC, b"\0") + strings
