"""Mount files and directories of the host over parts of a container's procfs.

Over /proc/driver/nvidia/params goes a file that says ModifyDeviceFiles: 0, so that NVIDIA's libraries inside make
and change no device nodes; over the directories of GPUs that the container was not given, an empty directory. The
target must be what it seems: a file or directory of a whole procfs, reached without links, which no other mount
namespace shares. Where there is no such target there is nothing to hide.

Hot path: builtin modules only until there is something to mount.
"""

from __future__ import annotations

import posix
from errno import EINVAL

from gpuhook.inject.roots import same
from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.paths.mountinfo import OtherMountError, mount_id, read_proc
from gpushim.paths.walk import DIRECTORY, PATH_ONLY, REGULAR, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs

OPTIONS = ("ro", "nosuid", "nodev", "noexec")
PARAMS = "/proc/driver/nvidia/params"
MODIFIES, MODIFIES_NOT = b"ModifyDeviceFiles: 1\n", b"ModifyDeviceFiles: 0\n"


def cover(root: Rootfs, source: str, path: str) -> None:
    """Mount a file or directory of the host over the container's, once.

    Args:
        source: path on the host, trusted.
        path: in the container, below the directory where its procfs is mounted.

    Raises:
        OSError: there is no such source, or the target is a link or of another kind, or lies on another mount than
            the procfs.
        GpushimError: it is not a procfs, or its mounts are shared with others, or the kernel refuses.
    """
    fds: list[int] = []
    try:
        try:
            _open_each(root.fd, path.split("/")[1:], fds)
        except FileNotFoundError:
            return
        fds.append(posix.open(source, posix.O_PATH | posix.O_CLOEXEC))
        target, cover_fd = fds[-2], fds[-1]
        if same(target, cover_fd):
            return  # from the first time
        kind = posix.fstat(cover_fd).st_mode & TYPE
        if posix.fstat(target).st_mode & TYPE != kind:
            raise OSError(EINVAL, f"is not a {'directory' if kind == DIRECTORY else 'regular file'}")
        _check(root, fds[0], target, path)
        from gpuhook.inject import mounts  # 1.3 ms: `posix` lacks mount(2)

        mountpoint = (fds[-3], path.rpartition("/")[2], target)
        mounts.bind(root.process, [mounts.Bind(source, cover_fd, mountpoint, OPTIONS)])
    finally:
        for fd in fds:
            posix.close(fd)


def restrict_params(root: Rootfs) -> None:
    """Cover the driver's parameters by a copy that says ModifyDeviceFiles: 0, where no file of the host says so.

    Raises OSError and GpushimError as `cover` does.
    """
    fds: list[int] = []
    try:
        try:
            _open_each(root.fd, PARAMS.split("/")[1:], fds)
        except FileNotFoundError:
            return
        target = fds[-1]
        if posix.fstat(target).st_mode & TYPE != REGULAR:
            raise OSError(EINVAL, "is not a regular file")
        if mount_id(target) != mount_id(fds[0]):
            return  # a file of the user's, or ours from the first time; it is not even read
        _check(root, fds[0], target, PARAMS)
        data = read_proc(f"/proc/self/fd/{target}", bounds.DRIVER_PARAMS)
        if MODIFIES not in data:
            return
        from gpuhook.inject import mounts  # as above

        folder, name = PARAMS.split("/")[-2:]
        mountpoint = (fds[-2], name, target)
        mounts.bind_data(root.process, data.replace(MODIFIES, MODIFIES_NOT), (fds[-3], folder), mountpoint, OPTIONS)
    finally:
        for fd in fds:
            posix.close(fd)


def _open_each(top: int, names: list[str], fds: list[int]) -> None:
    """Open each component of a path without following links; append the fds to `fds`."""
    for name in names[:-1]:
        fds.append(posix.open(name, PATH_ONLY | posix.O_DIRECTORY, dir_fd=fds[-1] if fds else top))
    fds.append(posix.open(names[-1], PATH_ONLY, dir_fd=fds[-1]))


def _check(root: Rootfs, proc: int, target: int, path: str) -> None:
    """Refuse a target on another mount than the procfs, and a mount there that is not the root of a procfs.

    A procfs that would carry ours to other namespaces is refused, too (proc(5)).
    """
    proc_id = mount_id(proc)
    if mount_id(target) != proc_id:
        raise OtherMountError(path)
    mount = root.mounted(proc_id)
    if not mount:
        raise GpushimError("what is mounted there is unknown to the container's mount namespace", ROOTFS)
    if mount.type != b"proc" or mount.root != b"/":
        raise GpushimError("what is mounted there is not a procfs", ROOTFS)
    if mount.shared:
        raise GpushimError("the procfs there is shared with other mount namespaces", ROOTFS)
