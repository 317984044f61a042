"""The directory of a group: made and held for its supervisor, with a /dev/shm for its clients, and removed.

Out of scope: what is in it (mps.py), and who it is for (supervisor.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING

from gpuplugin.mps.control_daemon import program
from gpushim.engines.processes import ask
from gpushim.ground.errors import INVENTORY, GpushimError, quote
from gpushim.paths import lock, selinux, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.mps.mps import Place

LOCKED = 2.0  # seconds to wait for the lock, which the plugin takes for a moment to see whether somebody has it
LOG = 4 << 20  # bytes of a log: each client makes it longer, and /run is memory
# The memory of clients' shared files counts for their cgroups only as long as those live.
SHM = "size=10%,nr_inodes=100k,mode=1777,nosuid,nodev,noexec"


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """Make a group's directories, and hold its lock.

    Args:
        place: the directories.

    Raises:
        GpushimError: somebody holds it, or they cannot be made.
    """
    os.umask(0o022)  # clients of all users look for the pipes
    for folder in (f"{place.state_dir}/mps", place.top, place.pipe, place.log, place.private, place.shm):
        os.makedirs(folder, 0o700 if folder == place.private else 0o755, exist_ok=True)
        if folder != place.shm and not trust.ours(folder):
            raise GpushimError(f"{folder} is not root's alone; remove it", INVENTORY)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(place.lock, LOCKED))
        except GpushimError:
            if lock.is_held(place.lock):
                raise GpushimError(f"{place.group} has a supervisor that runs; stop it first", INVENTORY) from None
            raise
        _mount(place.shm)
        for folder in (place.pipe, place.shm):  # what clients have
            selinux.give(folder, selinux.WRITABLE)
        yield


@contextlib.contextmanager
def leaving_word(place: Place) -> Iterator[None]:
    """Leave word of what the body fails with, for those who cannot read the journal.

    Args:
        place: the group's directories.
    """
    try:
        yield
    except GpushimError as error:
        if os.path.isdir(place.top):
            replace(place.problem, json.dumps({"sentence": str(error)}).encode())
        raise


def shorten(place: Place) -> None:
    """Empty logs that are too long; who writes one goes on where he was, and the hole before that is no memory.

    Args:
        place: the group's directories.
    """
    folder = place.log
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if status.st_mode & trust.FILE_TYPE == trust.REGULAR and status.st_blocks * 512 > LOG:
                    os.ftruncate(fd, 0)
            finally:
                os.close(fd)


def remove(place: Place) -> None:
    """Remove a group's directories.

    Args:
        place: the directories.
    """
    with contextlib.suppress(GpushimError):
        _run("umount", "--lazy", place.shm)
    shutil.rmtree(place.top, ignore_errors=True)


def _mount(folder: str) -> None:
    """Give the group's clients a /dev/shm with a limit; one that is there stays, for containers may have it."""
    if not os.path.ismount(folder):
        _run("mount", "-t", "tmpfs", "-o", SHM, "gpushim-mps", folder)


def _run(name: str, *words: str) -> None:
    done = ask.program([program(name), *words])
    if done.code != 0:
        raise GpushimError(f"{name} of {words[-1]} fails: {quote(done.last)}", INVENTORY)
