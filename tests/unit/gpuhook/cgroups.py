"""Cgroups with processes in them, in mount namespaces that show only v1 or only v2, whatever the host has."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuhook.inject import bpf
from unit.gpuhook.sandbox import forked

TOP = Path("/sys/fs/cgroup")
ALLOWED, DENIED = "ENXIO", "EPERM"  # what opening a node without a driver says
DENY = bytes.fromhex("b700000000000000 9500000000000000")  # return 0


def show(version: str) -> Path:
    """In a mount namespace of one's own, show only one version; return the directory of its root."""
    commands = "umount --recursive /sys/fs/cgroup; "
    if version == "2":
        commands += "mount -t cgroup2 none /sys/fs/cgroup"
    else:
        commands += "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/devices; "
        commands += "mount -t cgroup -o devices none /sys/fs/cgroup/devices"
    subprocess.run(["/bin/sh", "-ec", commands], check=True)
    return TOP if version == "2" else TOP / "devices"


@contextmanager
def group(parent: Path, name: str, prefix: str = f"gpushim-{os.getpid()}") -> Iterator[Path]:
    """Make a cgroup, by default with a name of this process's own."""
    path = parent / f"{prefix}{name}"
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


@contextmanager
def member(path: Path) -> Iterator[int]:
    """Start a process that waits in a cgroup."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        try:
            (path / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


def deny(path: Path, version: str) -> None:
    """Deny all devices."""
    if version == "1":
        (path / "devices.deny").write_text("a")
    else:
        attach(path, DENY)


def attach(path: Path, *codes: bytes, flags: int = bpf.MULTI) -> None:
    """Attach device programs to a cgroup."""
    kernel = bpf.Kernel(os.uname().machine)
    cgroup = os.open(path, os.O_DIRECTORY)
    for code in codes:
        program = kernel.load(code)
        kernel.call(bpf.ATTACH, "<IIIII", cgroup, program, bpf.ATTACH_TYPE, flags, 0)
        os.close(program)
    os.close(cgroup)


def programs(path: Path) -> list[bytes]:
    """Read the code of a cgroup's device programs."""
    kernel = bpf.Kernel(os.uname().machine)
    cgroup = os.open(path, os.O_DIRECTORY)
    found = []
    for number in kernel.attached(cgroup)[0]:
        program = kernel.call(bpf.FD_BY_ID, "<III", number, 0, 0)[0]
        found.append(kernel.code(program))
        os.close(program)
    os.close(cgroup)
    return found


def opens(path: Path, scratch: Path, *nodes: str, flags: int = os.O_RDWR) -> str:
    """What a process in a cgroup gets when it opens nodes such as `c195:0`, which have no driver."""

    def tries() -> str:
        (path / "cgroup.procs").write_text(str(os.getpid()))
        return " ".join(errno.errorcode[_error(scratch / node, flags)] for node in nodes)

    for node in nodes:
        major, _, minor = node[1:].partition(":")
        if not (scratch / node).exists():
            kind = 0o060000 if node[0] == "b" else 0o020000
            os.mknod(scratch / node, kind | 0o600, os.makedev(int(major), int(minor)))
    return forked(tries)


def _error(path: Path, flags: int) -> int:
    try:
        os.close(os.open(path, flags))
    except OSError as error:
        return error.errno or 0
    raise AssertionError(f"{path} has a driver")
