"""Open a container's root, and see that it is the one that runc or crun have mounted for it.

Out of scope: what is read and written below it (rootfs.py). Hot path: builtin modules only; of the mounts that a
container sees, its own is looked up.
"""

from __future__ import annotations

import posix

from gpushim.ground.errors import ROOTFS, GpushimError, visible
from gpushim.paths.mountinfo import held, mount_id
from gpushim.paths.rootfs import KERNELS, Rootfs
from gpushim.paths.walk import PLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.mountinfo import Mount


def process_of(pid: int) -> str:
    """Hold a container's process: return its directory in /proc.

    Raises:
        GpushimError: there is no such process.
    """
    try:
        return held(pid)
    except OSError as error:
        raise GpushimError(f"the container's process {pid} cannot be found: {error.strerror}", ROOTFS) from None


def open_root(process: str, path: str) -> Rootfs:
    """Open a created container's rootfs.

    Args:
        process: directory of the container's process in /proc, held open; "" if the caller is in its mount namespace.
        path: of the rootfs.

    Raises:
        GpushimError: there is no such rootfs.
    """
    try:
        return Rootfs(process, path)
    except OSError as error:
        raise GpushimError(f"the rootfs {visible(path)} cannot be opened: {error.strerror}", ROOTFS) from None


def is_host_root(root: Rootfs, *others: str) -> bool:
    """Say whether this is the root directory of this process, or another directory that is no container's root."""
    ours, tops = posix.fstat(root.fd), map(posix.stat, ("/", *others))
    return any((ours.st_dev, ours.st_ino) == (top.st_dev, top.st_ino) for top in tops)


def check(root: Rootfs) -> None:
    """See that this is the root that runc or crun have mounted for the container, and nothing laid over it.

    Both mount the rootfs onto itself. A volume whose destination leads to the root comes on top of that, where
    pivot_root(2) and the path find it; it is the user's. So all that is mounted in the place must be the same
    directory, or that which the host's side of the path shows, where the caller has one.

    Raises:
        GpushimError: it is another directory.
        OSError: it cannot be looked at.
    """
    place, here = visible(root.path), root.mounted(root.mount)
    above = posix.open("..", PLACE, dir_fd=root.fd)
    try:
        # Above the root directory is the root directory: that of a process which has gone there already.
        if mount_id(above) == root.mount and not _identical(above, root.fd):
            raise GpushimError(
                f"the rootfs {place} is no mount point, as the root of a container is; mount it onto itself, or "
                "name the container's",
                ROOTFS,
            )
    finally:
        posix.close(above)
    if not here or here.type in KERNELS:
        raise GpushimError(f"the rootfs {place} is on no file system for containers", ROOTFS)
    if _covered(root, here) and not (root.process and _is_hosts(root)):
        raise GpushimError(
            f"the rootfs {place} is covered by a volume; let no volume's destination lead to /", ROOTFS
        )


def _is_hosts(root: Rootfs) -> bool:
    """Say whether this is the directory that has the path on the host."""
    try:
        hosts = Rootfs("", root.path)
    except OSError:
        return False
    try:
        return _identical(hosts.fd, root.fd)
    finally:
        posix.close(hosts.fd)


def _covered(root: Rootfs, here: Mount) -> bool:
    """Say whether another directory is mounted below this mount, in the same place."""
    while True:
        below = root.mounted(here.parent)
        if not below or below.id == here.id or below.place != here.place:
            return False
        if (below.device, below.root) != (here.device, here.root):
            return True
        here = below


def _identical(one: int, other: int) -> bool:
    first, second = posix.fstat(one), posix.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
