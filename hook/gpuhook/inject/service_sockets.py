"""Mount the socket of a service of the driver's in a container, whoever owns the directory that it is in.

nvidia-persistenced's is a user's of its own, who can put anything under the socket's name at any moment: a link, or
another service's socket. A low-level runtime would follow that as root. So the socket is opened here, no link being
followed below root's directories, looked at, and mounted by that very descriptor. A service that does not run now, or
whose socket is not what it should be, costs a container nothing but the socket: no user stops others' containers.

Which sockets there are is in gpushim.inventory.data_files. Hot path: builtin modules until there is one to mount.
"""

from __future__ import annotations

import posix
from errno import EINVAL, EPERM

from gpuhook.inject import mountpoints, roots
from gpushim.paths import trust
from gpushim.paths.mountinfo import OtherMountError, mount_id
from gpushim.paths.walk import PATH_ONLY, SOCKET, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs

OPTIONS = ("ro", "nosuid", "nodev", "noexec")  # ro: its owner and mode are the host's and all other containers'


def lend(root: Rootfs, source: str, path: str) -> None:
    """Mount a service's socket in a container, once; do nothing where the service does not run.

    Args:
        root: the container's rootfs, as roots.check has seen it.
        source: path of the socket on the host; root alone can change what is above its directory.

    Raises:
        OSError: it is no socket of the owner of its directory, or its path in the container cannot be mounted on.
        GpushimError: the kernel refuses, or the mount namespace is not the container's own.
    """
    folder, _, name = source.rpartition("/")
    fds: list[int] = []
    try:
        try:
            fds.append(posix.open(folder, PATH_ONLY | posix.O_DIRECTORY))
            above = posix.open(folder.rpartition("/")[0] or "/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
            fds.append(above)
            if mount_id(above) != mount_id(fds[0]):  # FUSE, say: its server answers what it likes, when it likes
                raise OtherMountError(folder)
            fds.append(posix.open(name, PATH_ONLY, dir_fd=fds[0]))
            if mount_id(fds[2]) != mount_id(above):
                raise OtherMountError(source)
        except FileNotFoundError:
            return
        status = posix.fstat(fds[2])
        _check(posix.fstat(fds[0]), status)
        mountpoints.check_namespace(root)
        target = _find_target(root, path, status)
        if target:
            from gpuhook.inject import mounts  # 1.3 ms: `posix` lacks mount(2)

            fds += [target[0], target[2]]
            mounts.bind(root.process, [mounts.Bind(source, fds[2], target, OPTIONS)])
    finally:
        for fd in fds:
            posix.close(fd)


def _check(folder: posix.stat_result, socket: posix.stat_result) -> None:
    """Refuse a file that is no socket, or a socket that neither root nor its directory's owner can have made."""
    if socket.st_mode & TYPE != SOCKET:
        raise OSError(EINVAL, "is no socket")
    if folder.st_mode & trust.OTHERS_WRITE or not (trust.trusted(folder.st_uid) or socket.st_uid == folder.st_uid):
        raise OSError(EPERM, "is not of the user who owns its directory, or others can write there")


def _find_target(root: Rootfs, path: str, status: posix.stat_result) -> mountpoints.Target | None:
    """Find or make the target; the container's other mounts are looked up only where it is on one."""
    below = root.mounted(root.mount)
    if below and not below.shared:
        try:
            return mountpoints.find(root, path, status, (root.mount,))
        except OtherMountError:
            pass
    return mountpoints.find(root, path, status, {mount.id for mount in roots.own_mounts(root)})
