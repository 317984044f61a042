"""Run a command apart from this machine: `apart.py COMMAND...`, as root.

What it writes where gpushim and engines keep files of their own goes into layers of memory, in a mount namespace, and
ends with it; so do the nodes in /dev. Cgroups, of which engines leave the outer ones, are taken away afterwards.
Out of scope: whether something is left all the same (traces.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import checkout
import scratch
import traces
from unit.gpuhook.sandbox import bind, mount, own_mounts

LAYERED = ("dev", "etc", "root", "run", "tmp", "usr/local", "var/lib", "var/log")
# Terminals and shared memory, mounts that a layer would cover; and what is made once for the machine.
KEPT = (Path("/dev/pts"), Path("/dev/shm"), scratch.CACHE)
MEMORY = 6  # GiB; the tests' files take up to 1.4
CGROUPS = ".gpushim-cgroups"  # where the first of several runs notes what there was
OURS = ("/etc/gpushim", "/run/gpushim", "/var/lib/gpushim", "/var/log/gpushim.log")


def lay(layers: Path) -> None:
    """Lay a layer of memory, at this path, over what is written by default, for this process and its children.

    What this machine has of gpushim is not there for them.
    """
    own_mounts()
    mount("tmpfs", layers, "mode=755")
    for top in LAYERED:
        upper, work = layers / top, layers / f"{top}-work"
        upper.mkdir(parents=True)
        work.mkdir()
        kept = [(layers / "kept" / path.name, path) for path in KEPT if Path("/", top) in path.parents]
        for aside, there in kept:
            aside.mkdir(parents=True)
            bind(there, aside)
        mount("overlay", Path("/", top), f"lowerdir=/{top},upperdir={upper},workdir={work}")
        for aside, there in kept:
            bind(aside, there)
    for name in OURS:
        subprocess.run(["rm", "-rf", name], check=True)


def in_memory(top: Path) -> None:
    """Have the tests' files in memory where there is enough, as a disk's file system costs a third more in all.

    Rootless engines want user attributes, which a tmpfs has since Linux 6.6.
    """
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if int(facts["MemAvailable"].split()[0]) >> 20 < MEMORY:
        return
    mount("tmpfs", top, "mode=755")
    try:
        os.setxattr(top, "user.gpushim", b"")
    except OSError:
        subprocess.run(["umount", top], check=True)


def cover(top: Path, layers: Path) -> None:
    """Lay a layer over /opt, too, where a dockerd's containerd makes a directory, and the tests' files lie."""
    upper, work, tests = layers / "opt", layers / "opt-work", os.open(top, os.O_PATH)
    upper.mkdir()
    work.mkdir()
    mount("overlay", top.parent, f"lowerdir={top.parent},upperdir={upper},workdir={work}")
    bind(Path(f"/proc/self/fd/{tests}"), top)
    os.close(tests)


def _cgroups_before(lock: int, file: Path) -> set[str]:
    """Return the cgroups that there were before the first of the runs that are on now; share the lock with them."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write_text("\n".join(traces.cgroups()))
    fcntl.flock(lock, fcntl.LOCK_SH)
    return {*file.read_text().splitlines()} if file.exists() else traces.cgroups()


def _run_apart(top: Path, layers: Path) -> None:
    """Lay the layers, and become the command."""
    own_mounts()
    source = os.open(checkout.HERE, os.O_PATH)
    in_memory(top)
    checkout.bring(Path(f"/proc/self/fd/{source}"))
    os.close(source)
    lay(layers)
    cover(top, layers)
    os.environ[traces.OURS] = "1"
    command = [*map(checkout.moved, sys.argv[1:])]
    os.execvp(command[0], command)


def main() -> int:
    """Run the command; returns its exit code."""
    top = scratch.top()
    scratch.CACHE.mkdir(parents=True, exist_ok=True)
    lock = os.open(top.parent, os.O_RDONLY)
    before = _cgroups_before(lock, top.parent / CGROUPS)
    with tempfile.TemporaryDirectory(prefix="gpushim-layers-", dir=top.parent) as layers:
        child = os.fork()
        if not child:
            try:
                _run_apart(top, Path(layers))
            finally:  # never by the parent's way: what it deletes is mounted here
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BlockingIOError):  # another run's may be empty for a moment; the last one clears up
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for group in sorted(traces.cgroups() - before, reverse=True):  # the inner ones first
            with contextlib.suppress(OSError):  # somebody is in it, which traces.py tells
                os.rmdir(group)
        (top.parent / CGROUPS).unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
