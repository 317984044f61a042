"""Open a container for a hook that may run in the host's mount namespace or in the container's.

createContainer hooks run in the container's mount namespace before pivot_root(2): the host's files are still in
place, and the rootfs is at its path on the host. prestart and createRuntime hooks run in the host's, where the
container's mounts are behind /proc/<pid>/root. `process_of` tells which of the two it is.

Out of scope: what is done in the container (cdi_hook.py). Not for the hot path.
"""

from __future__ import annotations

import posix
import sys

from gpuhook import prestart
from gpuhook.find_bundle import rootfs_of
from gpuhook.finish.finish import Work, skipped
from gpuhook.live import roots
from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError, visible
from gpushim.paths.mountinfo import held
from gpushim.paths.rootfs import Rootfs
from gpushim.paths.walk import REGULAR, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Container(Work):
    """One container; what is skipped in it is said on stderr."""

    __slots__ = ()

    def __init__(self, root: Rootfs) -> None:
        super().__init__(root, "")

    def warn(self, what: str, error: Exception) -> None:
        """Say what was skipped."""
        prestart.say(skipped(what, error)[: bounds.LOG_TEXT])

    def name_folders(self, folders: list[bytes], keep: bool = True) -> None:
        """Name directories beside those of other hooks of this container."""
        super().name_folders(folders, keep)


def state_from(path: str) -> dict[str, Any]:
    """Read the container's state (OCI runtime-spec, State) from a file, or from stdin for `-`; it is not trusted.

    Raises:
        GpushimError: it does not come, or says that the container runs already.
    """
    if path == "-":
        state = prestart.read_object(0)
    else:
        try:
            fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY)
        except (OSError, ValueError) as error:
            place = visible(path)
            raise GpushimError(f"the container's state cannot be read from {place}: {error}", ROOTFS) from None
        try:
            if posix.fstat(fd).st_mode & TYPE != REGULAR:
                raise GpushimError(f"{visible(path)} is not a regular file", ROOTFS)
            state = prestart.read_object(fd)
        finally:
            posix.close(fd)
    if state.get("status") not in prestart.WAITING:
        raise GpushimError("the container's state says that it is past the stages of these hooks", ROOTFS)
    return state


def process_of(state: dict[str, Any]) -> str:
    """Say whether we see a container's mounts only through its process, and through which.

    The pid of a state counts from the runtime's own pid namespace. To a createContainer hook it is the container's,
    while /proc is still the host's and has another process under that number: nothing is looked up there until it
    is known that the number belongs there. It does not if there is none (crun gives 0 then), if it is our own
    parent's, which is the container's process in that stage alone, or if we have a number in a pid namespace
    below that of /proc ("NSpid" in proc(5)). Otherwise the two mount namespaces tell.

    Returns:
        the directory of the container's process in /proc, held open; "" if we are in its mount namespace.

    Raises:
        GpushimError: its namespace cannot be looked at.
    """
    pid = state.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31 or pid == posix.getppid() or _is_nested():
        return ""
    try:
        process = held(pid)
        ours, theirs = posix.stat("/proc/self/ns/mnt"), posix.stat(f"{process}/ns/mnt")
    except OSError as error:
        sentence = f"the mount namespace of the container's process cannot be looked at: {error.strerror}"
        raise GpushimError(sentence, ROOTFS) from None
    return "" if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) else process


def _is_nested() -> bool:
    fd = posix.open("/proc/self/status", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        text = posix.read(fd, 1 << 16)
    finally:
        posix.close(fd)
    return len(text.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()) > 1


def open_container(state: dict[str, Any]) -> Container:
    """Open the rootfs that the bundle names, where its mounts can be seen.

    Raises:
        GpushimError: there is none, or it is the root directory itself, or not the container's (roots.check).
    """
    root = roots.open_root(process_of(state), rootfs_of(state))
    if roots.is_host_root(root, *([f"{root.process}/root"] if root.process else [])):
        raise GpushimError("the container's rootfs is the host's own root directory", ROOTFS)
    roots.check(root)
    return Container(root)


def encode(path: str) -> bytes:
    """Return a path of a command line as the kernel has it."""
    return path.encode(sys.getfilesystemencoding(), "surrogateescape")


def decode(path: bytes) -> str:
    """Return a path of the kernel's as a command line has it."""
    return path.decode(sys.getfilesystemencoding(), "surrogateescape")
