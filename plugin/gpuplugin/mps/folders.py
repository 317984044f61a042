"""The directory of a group: made and held for its supervisor, with a /dev/shm for its clients, and removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING

from gpuplugin.mps.control_daemon import find_program
from gpushim.engines.processes import ask
from gpushim.ground.errors import INVENTORY, GpushimError, quote
from gpushim.paths import lock, selinux, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.mps.mps import Folders

LOCKED = 2.0  # seconds to wait for the lock, which the plugin takes for a moment to see whether somebody has it
LOG = 4 << 20  # bytes of a log: each client makes it longer, and /run is memory
# The memory of clients' shared files counts for their cgroups only as long as those live.
SHM = "size=10%,nr_inodes=100k,mode=1777,nosuid,nodev,noexec"


@contextlib.contextmanager
def hold(folders: Folders) -> Iterator[None]:
    """Make a group's directories, and hold its lock.

    Raises:
        GpushimError: it is held already, or they cannot be made.
    """
    os.umask(0o022)  # clients of all users look for the pipes
    for folder in (f"{folders.state_dir}/mps", folders.top, folders.pipe, folders.log, folders.private, folders.shm):
        os.makedirs(folder, 0o700 if folder == folders.private else 0o755, exist_ok=True)
        if folder != folders.shm and not trust.ours(folder):
            raise GpushimError(f"{folder} is not root's alone; remove it", INVENTORY)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(folders.lock, LOCKED))
        except GpushimError:
            if lock.is_held(folders.lock):
                raise GpushimError(f"{folders.group} has a supervisor that runs; stop it first", INVENTORY) from None
            raise
        _mount(folders.shm)
        for folder in (folders.pipe, folders.shm):  # what clients have
            selinux.give(folder, selinux.WRITABLE)
        yield


@contextlib.contextmanager
def recording_problem(folders: Folders) -> Iterator[None]:
    """Write the body's error into a file, for those who cannot read the journal."""
    try:
        yield
    except GpushimError as error:
        if os.path.isdir(folders.top):
            replace(folders.problem, json.dumps({"sentence": str(error)}).encode())
        raise


def shorten(folders: Folders) -> None:
    """Empty logs that are too long; their writers go on at their offsets, and the hole before those is no memory."""
    folder = folders.log
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if status.st_mode & trust.FILE_TYPE == trust.REGULAR and status.st_blocks * 512 > LOG:
                    os.ftruncate(fd, 0)
            finally:
                os.close(fd)


def remove(folders: Folders) -> None:
    with contextlib.suppress(GpushimError):
        _run("umount", "--lazy", folders.shm)
    shutil.rmtree(folders.top, ignore_errors=True)


def _mount(folder: str) -> None:
    """Mount the group's clients a /dev/shm with a limit; one that is there stays, for containers may have it."""
    if not os.path.ismount(folder):
        _run("mount", "-t", "tmpfs", "-o", SHM, "gpushim-mps", folder)


def _run(name: str, *words: str) -> None:
    result = ask.program([find_program(name), *words])
    if result.code != 0:
        raise GpushimError(f"{name} of {words[-1]} fails: {quote(result.last)}", INVENTORY)
