"""Lend a container the socket of a service of the driver's, whoever owns the directory that it is in.

nvidia-persistenced's is a user's of its own, who can put anything under the socket's name at any moment: a link, or
another service's socket. A low-level runtime would follow that as root. So the socket is opened here, no link being
followed below root's directories, looked at, and mounted by that very descriptor. A service that does not run now, or
whose socket is not what it should be, costs a container nothing but the socket: no user stops others' containers.

Out of scope: which sockets there are (gpushim.inventory.data_files), the system calls (mounts.py).
Hot path: builtin modules only until there is something to mount.
"""

from __future__ import annotations

import posix
from errno import EINVAL, EPERM

from gpuhook.live import mountpoints, roots
from gpushim.paths import trust
from gpushim.paths.mountinfo import OtherMountError, mount_id
from gpushim.paths.walk import PLACE, SOCKET, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs

OPTIONS = ("ro", "nosuid", "nodev", "noexec")  # ro: its owner and mode are the host's and all other containers'


def lend(root: Rootfs, source: str, path: str) -> None:
    """Mount a service's socket in a container, once; do nothing where the service does not run.

    Args:
        root: the container's rootfs, as roots.check has seen it.
        source: path of the socket on the host; root alone can change what is above its directory.
        path: in the container.

    Raises:
        OSError: it is no socket of who owns its directory, or its place in the container is no place to mount on.
        GpushimError: the kernel refuses, or the mount namespace is not the container's own.
    """
    folder, _, name = source.rpartition("/")
    fds: list[int] = []
    try:
        try:
            fds.append(posix.open(folder, PLACE | posix.O_DIRECTORY))
            above = posix.open(folder.rpartition("/")[0] or "/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
            fds.append(above)
            if mount_id(above) != mount_id(fds[0]):  # FUSE, say: its server answers what it likes, when it likes
                raise OtherMountError(folder)
            fds.append(posix.open(name, PLACE, dir_fd=fds[0]))
            if mount_id(fds[2]) != mount_id(above):
                raise OtherMountError(source)
        except FileNotFoundError:
            return
        facts = posix.fstat(fds[2])
        _check(posix.fstat(fds[0]), facts)
        mountpoints.check_namespace(root)
        place = _place(root, path, facts)
        if place:
            from gpuhook.live import mounts  # 1.3 ms: `posix` lacks mount(2)

            fds += [place[0], place[2]]
            mounts.bind(root.process, [mounts.Bind(source, fds[2], place, OPTIONS)])
    finally:
        for fd in fds:
            posix.close(fd)


def _check(folder: posix.stat_result, found: posix.stat_result) -> None:
    """Refuse what is no socket, and one that neither root nor the directory's owner can have put there."""
    if found.st_mode & TYPE != SOCKET:
        raise OSError(EINVAL, "is no socket")
    if folder.st_mode & trust.OTHERS_WRITE or not (trust.trusted(folder.st_uid) or found.st_uid == folder.st_uid):
        raise OSError(EPERM, "is not of the user who owns its directory, or others can write there")


def _place(root: Rootfs, path: str, facts: posix.stat_result) -> mountpoints.Place | None:
    """Find or make the place; what other mounts are the container's own is looked up only where it is on one."""
    here = root.mounted(root.mount)
    if here and not here.shared:
        try:
            return mountpoints.find(root, path, facts, (root.mount,))
        except OtherMountError:
            pass
    return mountpoints.find(root, path, facts, {one.id for one in roots.own_mounts(root)})
