"""The only way to touch anything below a container's rootfs.

Places are found by walk.py; what is read and written there is reached through directory fds alone.
Reads and writes stay on the mount of the rootfs itself. With `-v /etc:/etc` the container's /etc is the host's; and
what root reads on a volume or a procfs, and writes into the image, the container could read without being allowed
to. One mount has one file system, so what has its id is no procfs. The id is that of the O_PATH fd, which opens
nothing: to open and close a file such as /proc/kmsg can already change it. Libraries that everybody may read are
opened on volumes too, where the driver's are (`volumes`, for gpuhook.nvidia.container).
To follow a link, or to go through a directory, is to read it: where the next file comes to lie, or whether one is
made, tells the container what it says. So the way leads through nothing on another mount that the container may not
see by itself (Rootfs.way).

Out of scope: mounts (mounts.py), device nodes, whether it is a container's root at all (roots.py), and what a
container's own mounts are (roots.py).
Hot path: builtin modules only.
"""

from __future__ import annotations

import posix
from errno import EFBIG, EINVAL, ELOOP

from gpushim.ground import bounds
from gpushim.paths import mountinfo
from gpushim.paths.directory import Directory, make_on
from gpushim.paths.mountinfo import OtherMountError, mount_id, read_all
from gpushim.paths.walk import DIRECTORY, LINK, REGULAR, TYPE, os_error, walk, walk_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from gpushim.paths.walk import Allow

_FOR_ALL, _THROUGH_FOR_ALL = 0o004, 0o001  # S_IROTH, S_IXOTH
# File systems that show the kernel's own state: to open or read a file there can change it, wait, or tell secrets.
KERNELS = (
    b"proc sysfs cgroup cgroup2 debugfs tracefs securityfs pstore efivarfs bpf configfs fusectl selinuxfs smackfs "
    b"binfmt_misc mqueue devpts devtmpfs nsfs autofs rpc_pipefs nfsd hugetlbfs resctrl"
).split()
_DATA = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


class Rootfs:
    """A container's root directory, held open.

    Args:
        process: directory of the container's process in /proc, held open (mountinfo.held); "" if the caller is in its
            mount namespace.
        path: where the rootfs is when the root directory is that of the process, or the caller's.

    Raises:
        OSError: there is no such directory.
    """

    __slots__ = ("_device", "_left", "_mounts", "fd", "mount", "path", "process")

    def __init__(self, process: str, path: str) -> None:
        self.fd = walk_from(f"{process}/root" if process else "/", path + "/")
        self.mount = mount_id(self.fd)
        self._device = posix.fstat(self.fd).st_dev
        self._left = bounds.LINK_TEXT
        self.process, self.path = process, path
        self._mounts = b""

    def mounts(self) -> bytes:
        """Return the mountinfo of the container's mount namespace as it first was.

        Raises:
            OSError: the container's process has ended.
        """
        if not self._mounts:
            self._mounts = mountinfo.read(self.process)
        return self._mounts

    def mounted(self, mount: bytes) -> mountinfo.Mount | None:
        """Look a mount up in the container's mount namespace; None if it is not there."""
        return mountinfo.find(self.mounts(), mount)

    def way(self, also: Collection[bytes] = ()) -> Allow:
        """Return what refuses steps of a walk (its `allow`) that would tell the container what it may not know.

        These are links on file systems of the kernel's own (those of /proc/1/fd are the runtime's), and on a volume
        directories that not everybody may search. Links of the image may have so much text in all (ELOOP): with
        thousands of names, each of them long, they would cost minutes.

        Args:
            also: ids of mounts that are the container's own besides the rootfs's.
        """

        def allow(place: int, facts: posix.stat_result, _left: int) -> None:
            if facts.st_mode & TYPE == LINK:
                self._left -= facts.st_size or bounds.PATH
                if self._left < 0:
                    raise os_error(ELOOP, self.path)
                refused = facts.st_dev != self._device and self._is_kernels(place)
            else:
                searched = facts.st_mode & TYPE != DIRECTORY or facts.st_mode & _THROUGH_FOR_ALL
                refused = not searched and mount_id(place) not in (self.mount, *also)
            if refused:
                raise OtherMountError(self.path)

        return allow

    def _is_kernels(self, place: int) -> bool:
        mount = mount_id(place)
        if mount == self.mount:
            return False
        found = self.mounted(mount)
        return not found or found.type in KERNELS

    def reach(self, path: str) -> int:
        """Open the place that a path names, its last link followed; the caller closes the O_PATH fd.

        Raises:
            OSError: as walk.walk does; OtherMountError if the way is not the container's to see.
        """
        return walk(self.fd, path, allow=self.way())

    def _admit(self, place: int, path: str, facts: posix.stat_result, volumes: bool) -> None:
        """Refuse a place that is not to be read.

        Args:
            place: O_PATH fd of a regular file or directory.
            path: of it in the container.
            facts: about it.
            volumes: whether what lies on a volume is read too, if that is no file system of the kernel's own, and
                everybody may read it.
        """
        if mount_id(place) == self.mount:
            return
        if not volumes or not facts.st_mode & _FOR_ALL or self._is_kernels(place):
            raise OtherMountError(path)

    def exists(self, path: str) -> bool:
        """Tell whether a path in the container, its last link followed, leads anywhere."""
        try:
            posix.close(self.reach(path))
        except OSError:
            return False
        return True

    def open(self, path: str, volumes: bool = False) -> tuple[int, posix.stat_result]:
        """Open a regular file of the container for reading.

        Args:
            path: in the container.
            volumes: whether one on another mount is opened too: for libraries, of which little is read (elf.py).

        Returns:
            the fd, and what the file is.

        Raises:
            OSError: it is absent, not a regular file (EINVAL), or on another mount (OtherMountError).
        """
        place = self.reach(path)
        try:
            facts = posix.fstat(place)
            if facts.st_mode & TYPE != REGULAR:
                raise OSError(EINVAL, "is not a regular file", path)
            self._admit(place, path, facts, volumes)
            # An O_PATH fd cannot be read; opened through /proc it is the same inode, whatever its name is now.
            return posix.open(f"/proc/self/fd/{place}", _DATA), facts
        finally:
            posix.close(place)

    def read(self, path: str, limit: int) -> tuple[bytes, int]:
        """Read a regular file of the container.

        Returns:
            its bytes, and the mode for a file that repeats them: nobody may read there who may not read here.

        Raises:
            OSError: as `open` does, or it has more than `limit` bytes (EFBIG).
        """
        fd, facts = self.open(path)
        try:
            if facts.st_size > limit:
                raise os_error(EFBIG, path)
            return read_all(fd, limit, path, max(facts.st_size, 4096)), 0o600 | facts.st_mode & 0o644
        finally:
            posix.close(fd)

    def names(self, path: str, limit: int, volumes: bool = False) -> dict[str, bool]:
        """List a directory of the container: each name, and whether a regular file (no link) has it.

        Args:
            path: in the container.
            limit: of names.
            volumes: as for `open`.

        Raises:
            OSError: it is absent, no directory, on another mount (OtherMountError), or has too many names (EFBIG).
        """
        place = self.reach(path + "/")
        try:
            self._admit(place, path, posix.fstat(place), volumes)
            fd = posix.open(f"/proc/self/fd/{place}", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        finally:
            posix.close(place)
        found: dict[str, bool] = {}
        try:
            with posix.scandir(fd) as entries:
                for entry in entries:
                    found[entry.name] = entry.is_file(follow_symlinks=False)
                    if len(found) > limit:
                        raise os_error(EFBIG, path)
        finally:
            posix.close(fd)
        return found

    def directory(self, path: str, create: bool = False, also: Collection[bytes] = ()) -> Directory:
        """Open a directory to write in; `create` makes it and its parents where they are missing.

        Args:
            path: in the container.
            create: whether what is missing is made.
            also: ids of mounts that may be written to besides the rootfs's own (roots.py).

        Raises:
            OSError: it is absent, no directory, or on another mount (OtherMountError).
        """
        own = (self.mount, *also)
        fd = walk(self.fd, path + "/", missing=make_on(own) if create else None, allow=self.way(also))
        try:
            mount = mount_id(fd)
            if mount not in own:
                raise OtherMountError(path)
        except OSError:
            posix.close(fd)
            raise
        return Directory(fd, mount)
