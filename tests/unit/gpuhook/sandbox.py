"""What the hook's tests share: forked children, mount namespaces, kernel calls without a Python name."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
TOP = Path(__file__).resolve().parents[3]
HOOK = TOP / "bin" / "gpushim-hook"
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
RENAME_EXCHANGE = 2
AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def exchange(one: Path, two: Path) -> None:
    """Swap two names in one step."""
    _check(_libc.renameat2(AT_FDCWD, bytes(one), AT_FDCWD, bytes(two), RENAME_EXCHANGE))


def bind(source: Path, target: Path) -> None:
    _check(_libc.mount(bytes(source), bytes(target), None, ctypes.c_ulong(MS_BIND | MS_REC), None))


def own_mounts() -> None:
    """Let this process see what it mounts from now on, and nobody else."""
    _check(_libc.unshare(0x20000))  # CLONE_NEWNS
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))


def mount(kind: str, target: Path, options: str = "") -> None:
    _check(_libc.mount(b"gpushim-tests", bytes(target), kind.encode(), ctypes.c_ulong(0), options.encode()))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2_in_root(root: int, path: str, flags: int) -> int:
    """openat2(2) with RESOLVE_IN_ROOT (0x10); its number is 437 everywhere."""
    how = _OpenHow(flags, 0, 0x10)
    while True:
        try:
            size = ctypes.sizeof(how)
            return _check(_libc.syscall(437, root, os.fsencode(path), ctypes.byref(how), size))
        except BlockingIOError:
            continue  # EAGAIN: somebody on this machine renamed or mounted meanwhile


def forked(work: Callable[[], T], namespace: bool = False) -> T:
    """Run a function in a child, if asked in a mount namespace of its own, and hand its result back."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if namespace:
                own_mounts()
            result: object = (work(), "")
        except BaseException:
            result = (None, traceback.format_exc())
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        value, trouble = pickle.load(pipe)
    os.waitpid(child, 0)
    assert not trouble, trouble
    return value  # type: ignore[no-any-return]


@contextmanager
def running(work: Callable[[], object]) -> Iterator[int]:
    """Run a function again and again in a child until the block ends."""
    child = os.fork()
    if not child:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield child
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the other process gave up"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@contextmanager
def container(script: str = "") -> Iterator[int]:
    """Start a process that waits in a mount namespace of its own, after the commands in `script`."""
    command = f"set -e; {script}\necho ready; exec sleep 600"
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def as_root(pid: int, root: Path) -> None:
    """Mount a directory onto itself in a process's namespace, as runc and crun do with a rootfs, if nobody has."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    own = os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    if own and root.is_dir() and not any(line.split()[4] == str(root) for line in lines):
        mount = ["/bin/mount", "--rbind", str(root), str(root)]
        subprocess.run(["/usr/bin/nsenter", f"--mount=/proc/{pid}/ns/mnt", *mount], check=True)


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory that a change would change."""
    result: dict[str, tuple[object, ...]] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        facts = path.lstat()
        text = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        result[str(path.relative_to(top))] = (facts.st_ino, facts.st_mode, facts.st_mtime_ns, facts.st_uid, text)
    return result


def until(seconds: float) -> Iterator[int]:
    """Count rounds until the time is over."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1


def open_fds() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))
