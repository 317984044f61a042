"""Put files and directories of the host over places of a container's procfs.

Over /proc/driver/nvidia/params goes a file that says ModifyDeviceFiles: 0, so that NVIDIA's libraries inside make
and change no device nodes; over the directories of GPUs that the container was not given, an empty directory. The
place must be what it seems: one of a whole procfs, reached without links, which no other mount namespace shares.
Where there is no such place there is nothing to hide.

Out of scope: what covers what (gpushim.decision.plan), the sources (gpushim.inventory), the system calls (mounts.py).

Hot path: builtin modules only until there is something to mount.
"""

from __future__ import annotations

import posix
from errno import EINVAL

from gpuhook.live.roots import same
from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.paths.mountinfo import OtherMountError, mount_id, read_proc
from gpushim.paths.walk import DIRECTORY, PLACE, REGULAR, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs

OPTIONS = ("ro", "nosuid", "nodev", "noexec")
PARAMS = "/proc/driver/nvidia/params"
MODIFIES, MODIFIES_NOT = b"ModifyDeviceFiles: 1\n", b"ModifyDeviceFiles: 0\n"


def cover(root: Rootfs, source: str, path: str) -> None:
    """Mount a file or directory of the host over the container's, once.

    Args:
        root: the container's rootfs.
        source: path on the host, trusted.
        path: in the container, below the directory where its procfs is mounted.

    Raises:
        OSError: there is no such source, or the place is a link or of another kind, or lies on another mount than
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
        place, ours = fds[-2], fds[-1]
        if same(place, ours):
            return  # from the first time
        kind = posix.fstat(ours).st_mode & TYPE
        if posix.fstat(place).st_mode & TYPE != kind:
            raise OSError(EINVAL, f"is not a {'directory' if kind == DIRECTORY else 'regular file'}")
        _check(root, fds[0], place, path)
        from gpuhook.live import mounts  # 1.3 ms: `posix` lacks mount(2)

        where = (fds[-3], path.rpartition("/")[2], place)
        mounts.bind(root.process, [mounts.Bind(source, ours, where, OPTIONS)])
    finally:
        for fd in fds:
            posix.close(fd)


def restrict_params(root: Rootfs) -> None:
    """Cover the driver's parameters by a copy that says ModifyDeviceFiles: 0, where no file of the host says so.

    Args:
        root: the container's rootfs.

    Raises OSError and GpushimError as `cover` does.
    """
    fds: list[int] = []
    try:
        try:
            _open_each(root.fd, PARAMS.split("/")[1:], fds)
        except FileNotFoundError:
            return
        place = fds[-1]
        if posix.fstat(place).st_mode & TYPE != REGULAR:
            raise OSError(EINVAL, "is not a regular file")
        if mount_id(place) != mount_id(fds[0]):
            return  # a file of the user's, or ours from the first time; it is not even read
        _check(root, fds[0], place, PARAMS)
        data = read_proc(f"/proc/self/fd/{place}", bounds.DRIVER_PARAMS)
        if MODIFIES not in data:
            return
        from gpuhook.live import mounts  # as above

        folder, name = PARAMS.split("/")[-2:]
        where = (fds[-2], name, place)
        mounts.bind_data(root.process, data.replace(MODIFIES, MODIFIES_NOT), (fds[-3], folder), where, OPTIONS)
    finally:
        for fd in fds:
            posix.close(fd)


def _open_each(top: int, names: list[str], fds: list[int]) -> None:
    """Open each component of a path without following links; the fds go to the end of `fds`."""
    for name in names[:-1]:
        fds.append(posix.open(name, PLACE | posix.O_DIRECTORY, dir_fd=fds[-1] if fds else top))
    fds.append(posix.open(names[-1], PLACE, dir_fd=fds[-1]))


def _check(root: Rootfs, proc: int, place: int, path: str) -> None:
    """Refuse a place on another mount than the procfs, and a mount there that is not the root of a procfs.

    So is one refused that would carry ours to other namespaces (proc(5)).
    """
    mount = mount_id(proc)
    if mount_id(place) != mount:
        raise OtherMountError(path)
    found = root.mounted(mount)
    if not found:
        raise GpushimError("what is mounted there is unknown to the container's mount namespace", ROOTFS)
    if found.type != b"proc" or found.root != b"/":
        raise GpushimError("what is mounted there is not a procfs", ROOTFS)
    if found.shared:
        raise GpushimError("the procfs there is shared with other mount namespaces", ROOTFS)
