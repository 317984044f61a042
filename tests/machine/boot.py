"""Boot an emulated machine and read what its trial prints."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from machine import image
from machine.machines import Machine

QEMU = "/usr/bin/qemu-system-x86_64"
# One processor without a 16-byte compare-and-swap, in one thread: what emulation is fast and right with.
CPU = ("-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "1", "-m", "2048")
KERNEL = "console=ttyS0 quiet panic=-1 root=/dev/vda rw mitigations=off systemd.show_status=error"
LIMIT_SECONDS = 1800.0  # where others use the processor too


def trial(machine: Machine, console: Path, parts: list[str]) -> Iterator[str]:
    """Boot, and yield the lines of the trial.

    Args:
        machine: what to boot.
        console: file that gets the lines of the kernel and of systemd.
        parts: names of the parts to run; none for all.
    """
    with image.disk(machine, parts) as files, contextlib.ExitStack() as stack:
        command = [QEMU, *CPU, "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"]
        command += ["-serial", f"file:{console}", "-serial", "stdio"]
        command += ["-kernel", str(files / "kernel"), "-initrd", str(files / "initrd")]
        command += ["-append", f"{KERNEL} {machine.kernel}"]
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
