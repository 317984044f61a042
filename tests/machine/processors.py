"""The processors that are emulated: what of a machine depends on its own, and how its programs run here meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MISC = "binfmt_misc"


@dataclass(frozen=True)
class Processor:
    """A processor: its name to Debian and to uname(2), qemu's command, the kernel's console, who compiles for it."""

    debian: str
    machine: str
    qemu: tuple[str, ...]
    console: str
    gcc: str
    # The first bytes of its programs, where this computer cannot run them itself: elf(5).
    elf: bytes = b""

    @property
    def libraries(self) -> str:
        """Where Debian has its libraries, below the root."""
        return f"usr/lib/{self.machine}-linux-gnu"

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """Let the kernel run its programs for the block, by qemu's user emulation where it cannot itself.

        The handler is gone with the mount, or on kernels before 6.7 by its own file.
        """
        if not self.elf:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="machine-") as name:
            subprocess.run(["/bin/mount", "-t", MISC, MISC, name], check=True)
            here = Path(name, f"gpushim-{os.getpid()}")
            try:
                # Its interpreter stays open (F), so that a chroot does without.
                Path(name, "register").write_bytes(self.rule(here.name))
                yield
            finally:
                if here.exists():
                    here.write_text("-1")
                subprocess.run(["/bin/umount", name], check=True)

    def rule(self, name: str) -> bytes:
        """Return what registers the emulator under a name (Documentation/admin-guide/binfmt-misc.rst)."""
        mask = bytes([255] * 7 + [0] + [255] * 8 + [254] + [255] * 3)  # any OS ABI; a program, or one that moves
        magic, masked = ("".join(f"\\x{byte:02x}" for byte in each) for each in (self.elf, mask))
        return f":{name}:M:0:{magic}:{masked}:/usr/bin/qemu-{self.machine}-static:F".encode()


# One processor without a 16-byte compare-and-swap, in one thread: what emulation is fast and right with.
AMD64 = Processor(
    "amd64",
    "x86_64",
    ("/usr/bin/qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,-cx16"),
    "ttyS0",
    "gcc",
)
ARM64 = Processor(
    "arm64",
    "aarch64",
    ("/usr/bin/qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72"),
    "ttyAMA0",
    "aarch64-linux-gnu-gcc",
    b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00",
)
