"""Boot the emulated machine and read what its trial prints."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from machine import image

QEMU = "/usr/bin/qemu-system-x86_64"
# One processor without a 16-byte compare-and-swap, in one thread: what emulation is fast and right with.
CPU = ("-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "1", "-m", "1536")
KERNEL = (
    "console=ttyS0 quiet panic=-1 root=/dev/vda rw selinux=0 apparmor=0 mitigations=off systemd.show_status=error"
)
LIMIT_SECONDS = 1800.0  # where others use the processor too
LAST = "END"  # what the trial prints when it came to its end


def trial(console: Path) -> Iterator[str]:
    """Boot, and yield the lines of the trial; `console` gets those of the kernel and of systemd."""
    with image.disk() as files, contextlib.ExitStack() as stack:
        command = [QEMU, *CPU, "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"]
        command += ["-serial", f"file:{console}", "-serial", "stdio"]
        command += ["-kernel", str(files / "kernel"), "-initrd", str(files / "initrd"), "-append", KERNEL]
        command += ["-drive", f"file={files / 'disk'},if=virtio,format=raw,cache=unsafe"]
        qemu = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        stack.callback(qemu.wait)
        stack.callback(qemu.kill)
        timer = threading.Timer(LIMIT_SECONDS, qemu.kill)
        timer.start()
        stack.callback(timer.cancel)
        assert qemu.stdout is not None
        yield from (line.rstrip() for line in qemu.stdout)
