"""The only way to touch anything below a container's rootfs.

Paths are walked by walk.py, and files are read and written through directory fds alone, on the mount of the rootfs
itself. With `-v /etc:/etc` the container's /etc is the host's; and content that root reads on a volume or a procfs
and writes into the image, the container could read without being allowed to. One mount has one file system, so a file
with its id is on no procfs. The id is taken from the O_PATH fd, which opens nothing: to open and close a file such as
/proc/kmsg can already change it. Libraries that everybody may read are opened on volumes too, where the driver's are
(`volumes`, for gpuhook.nvidia.container).

Following a link or passing through a directory also reads it: the position of a new file would tell the container its
content. So a walk passes nothing on another mount that the container may not see by itself (Rootfs.way).
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
        path: of the rootfs from the root directory of the process, or the caller's.

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
        return mountinfo.find(self.mounts(), mount)

    def way(self, also: Collection[bytes] = ()) -> Allow:
        """Return a walk's `allow` that refuses steps which would tell the container what it may not know.

        These are links on file systems of the kernel's own (those of /proc/1/fd are the runtime's), and on a volume
        directories that not everybody may search. The text of the image's links is limited (ELOOP): thousands of long
        names would cost minutes. `also` are ids of mounts that are the container's own besides the rootfs's.
        """

        def allow(step: int, facts: posix.stat_result, _words: int) -> None:
            if facts.st_mode & TYPE == LINK:
                self._left -= facts.st_size or bounds.PATH
                if self._left < 0:
                    raise os_error(ELOOP, self.path)
                refused = facts.st_dev != self._device and self._is_kernels(step)
            else:
                searched = facts.st_mode & TYPE != DIRECTORY or facts.st_mode & _THROUGH_FOR_ALL
                refused = not searched and mount_id(step) not in (self.mount, *also)
            if refused:
                raise OtherMountError(self.path)

        return allow

    def _is_kernels(self, fd: int) -> bool:
        mount = mount_id(fd)
        if mount == self.mount:
            return False
        entry = self.mounted(mount)
        return not entry or entry.type in KERNELS

    def reach(self, path: str) -> int:
        """Open the file that a path names, its last link followed; the caller closes the O_PATH fd.

        Raises:
            OSError: as walk.walk does; OtherMountError if the way is not the container's to see.
        """
        return walk(self.fd, path, allow=self.way())

    def _admit(self, fd: int, path: str, facts: posix.stat_result, volumes: bool) -> None:
        """Raise OtherMountError for an O_PATH fd that is not to be read.

        With `volumes`, a file on a volume may be read if everybody may read it, and it is on no file system of the
        kernel's.
        """
        if mount_id(fd) == self.mount:
            return
        if not volumes or not facts.st_mode & _FOR_ALL or self._is_kernels(fd):
            raise OtherMountError(path)

    def exists(self, path: str) -> bool:
        try:
            posix.close(self.reach(path))
        except OSError:
            return False
        return True

    def open(self, path: str, volumes: bool = False) -> tuple[int, posix.stat_result]:
        """Open a regular file of the container for reading; return its fd and status.

        With `volumes`, one on another mount is opened too: for libraries, of which little is read (elf.py).

        Raises:
            OSError: it is absent, not a regular file (EINVAL), or on another mount (OtherMountError).
        """
        target = self.reach(path)
        try:
            facts = posix.fstat(target)
            if facts.st_mode & TYPE != REGULAR:
                raise OSError(EINVAL, "is not a regular file", path)
            self._admit(target, path, facts, volumes)
            # An O_PATH fd cannot be read; opened through /proc it is the same inode, whatever its name is now.
            return posix.open(f"/proc/self/fd/{target}", _DATA), facts
        finally:
            posix.close(target)

    def read(self, path: str, limit: int) -> tuple[bytes, int]:
        """Read a regular file of the container.

        Returns:
            its bytes, and the mode for a copy: a user who may not read the file may not read the copy.

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

        Raises:
            OSError: it is absent, no directory, on another mount (OtherMountError), or has more than `limit` names
                (EFBIG).
        """
        target = self.reach(path + "/")
        try:
            self._admit(target, path, posix.fstat(target), volumes)
            fd = posix.open(f"/proc/self/fd/{target}", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        finally:
            posix.close(target)
        kinds: dict[str, bool] = {}
        try:
            with posix.scandir(fd) as entries:
                for entry in entries:
                    kinds[entry.name] = entry.is_file(follow_symlinks=False)
                    if len(kinds) > limit:
                        raise os_error(EFBIG, path)
        finally:
            posix.close(fd)
        return kinds

    def directory(self, path: str, create: bool = False, also: Collection[bytes] = ()) -> Directory:
        """Open a directory to write in; `create` makes it and its parents where they are missing.

        `also` are ids of mounts that may be written to besides the rootfs's own (roots.py).

        Raises:
            OSError: it is absent, no directory, or on another mount (OtherMountError).
        """
        mounts = (self.mount, *also)
        fd = walk(self.fd, path + "/", missing=make_on(mounts) if create else None, allow=self.way(also))
        try:
            mount = mount_id(fd)
            if mount not in mounts:
                raise OtherMountError(path)
        except OSError:
            posix.close(fd)
            raise
        return Directory(fd, mount)
