"""Differences between machines, by the names of uname(2), for reading libraries and calling the kernel by number.

`i386` stands for the 32-bit programs of an x86_64. NVIDIA's drivers are for the machines in LOADERS; the others are
named so that their libraries are recognised as foreign. On the hook path: imports nothing.
"""

from __future__ import annotations

# EI_CLASS and e_machine of an ELF file: elf(5).
ELF = {"x86_64": (2, 62), "aarch64": (2, 183), "ppc64le": (2, 21), "riscv64": (2, 243), "i386": (1, 3)}
# The ABI in the flags of an ld.so.cache's entry: glibc's sysdeps/generic/ldconfig.h.
CACHE_ABIS = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500, "riscv64": 0x1000, "i386": 0x0000}
CACHE_LIBC6 = 3  # FLAG_ELF_LIBC6, their low byte
# glibc's loader: an image without it has programs of musl, or none.
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LOADER32 = "/lib/ld-linux.so.2"  # i386's
COMPANIONS = {"x86_64": "i386"}  # machines whose drivers have libraries for programs of another kind, too
MULTIARCH = (b"/x86_64-linux-gnu", b"/aarch64-linux-gnu", b"/i386-linux-gnu")  # directories of all these: triplet()
BPF = {"x86_64": 321, "aarch64": 280}  # the number of bpf(2): syscall(2), <asm/unistd.h>


def triplet(machine: str) -> str:
    """Return Debian's name for the directory of a machine's libraries (multiarch)."""
    return f"{machine}-linux-gnu"
