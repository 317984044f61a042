"""Images for the hook to finish, and the hook as the process that runc starts."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushim.ground.machines import LOADERS
from unit.gpuhook.caches import image, ldconfig, listing
from unit.gpuhook.sandbox import HOOK, as_root

OWNER = 100000  # the host's id of root in `user_container`

MACHINE = platform.machine()
DRV = "/usr/lib/drv"
LIBS = ("--lib", f"libcuda.so.1={DRV}/libcuda.so.550", "--lib", f"libnvidia-ml.so.1={DRV}/libnvidia-ml.so.550")
LINK = ("--link", f"libcuda.so.1::{DRV}/libcuda.so")


def run(*argv: object, state: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    words = [str(HOOK), *map(str, argv)]
    return subprocess.run(words, input=state, capture_output=True, env=env or {}, timeout=60)


def finish(root: Path, pid: int, *more: object) -> str:
    """Run the hook as it runs after the shim; return what the log says."""
    log = root.parent / "log"
    as_root(pid, root)
    done = run("prestart", "--rootfs", root, "--log", log, *LIBS, *LINK, *more, state=b'{"pid": %d}' % pid)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return log.read_text() if log.exists() else ""


def glibc_image(folder: Path) -> Path:
    """A glibc image with a cache, and the driver's libraries as if mounted; a canary stands beside it."""
    top = folder / "root"
    top.mkdir()
    image(top, ("libz.so.1", "libcuda.so.1"))
    ldconfig(top)
    glibc(top)
    (top / DRV[1:]).mkdir(parents=True)
    for name in ("libcuda.so.550", "libnvidia-ml.so.550"):
        (top / DRV[1:] / name).touch()
    (folder / "canary").mkdir()
    return top


def glibc(top: Path) -> None:
    loader = top / LOADERS[MACHINE][1:]
    loader.parent.mkdir(exist_ok=True)
    loader.touch()


def entries(top: Path) -> dict[str, str]:
    lines = [line.split(" => ") for line in listing((top / "etc/ld.so.cache").read_bytes())]
    return {name.split()[0]: path for name, path in reversed(lines)}


@contextmanager
def user_container(script: str) -> Iterator[int]:
    """Start a process as root of a user namespace in which no id of the host below OWNER has one.

    Args:
        script: commands of sh that it runs there, in a mount namespace of its own, before it waits.
    """
    (ready_read, ready_write), (go_read, go_write) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            failed = ctypes.CDLL(None).unshare(0x10000000 | 0x20000)  # CLONE_NEWUSER | CLONE_NEWNS
            os.write(ready_write, b"0" if failed else b"1")
            os.read(go_read, 1)
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.dup2(ready_write, 1)
            os.execv("/bin/sh", ["/bin/sh", "-c", f"set -e; {script}\necho 2; exec sleep 600"])
        finally:
            os._exit(1)
    try:
        assert os.read(ready_read, 1) == b"1"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {OWNER} 1000")
        os.write(go_write, b"1")
        os.close(ready_write)  # so that a script that fails is an end, not a wait
        assert os.read(ready_read, 1) == b"2"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for fd in (ready_read, go_read, go_write):
            os.close(fd)
