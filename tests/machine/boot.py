"""Boot an emulated machine and read what its trial prints."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from machine import image
from machine.machines import Machine

COMMON = ("-smp", "1", "-m", "2048", "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot")
KERNEL = "console={console} quiet panic=-1 root=/dev/vda rw mitigations=off systemd.show_status=error"
LIMIT_SECONDS = 1800.0  # where others use the processor too


def trial(machine: Machine, console: Path, parts: list[str]) -> Iterator[str]:
    """Boot, as often as the machine wants it, and yield the lines of the trial.

    Args:
        machine: what to boot.
        console: file that gets the lines of the kernel and of systemd.
        parts: names of the parts to run; none for all.
    """
    with image.disk(machine, parts) as files:
        command = [*machine.processor.qemu, *COMMON, "-serial", f"file:{console}", "-device", "virtio-serial-pci"]
        command += ["-chardev", "stdio,id=rows", "-device", "virtconsole,chardev=rows"]
        command += ["-kernel", str(files / "kernel"), "-initrd", str(files / "initrd")]
        command += ["-append", f"{KERNEL.format(console=machine.processor.console)} {machine.kernel}"]
        command += ["-drive", f"file={files / 'disk'},if=virtio,format=raw,cache=unsafe"]
        for _ in range(machine.boots):
            yield from _until_off(command)


def _until_off(command: list[str]) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
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
