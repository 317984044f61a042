"""Write files and links into one directory of a container, never on another mount.

A file is made under a temporary name and renamed. Hot path: builtin modules only.
"""

from __future__ import annotations

import posix
from errno import EISDIR

from gpushim.ground import bounds
from gpushim.paths.mountinfo import OtherMountError, mount_id
from gpushim.paths.walk import DIRECTORY, PATH_ONLY, TYPE, os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeVar

    from gpushim.paths.walk import Missing

    T = TypeVar("T")

NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
TEMPORARY, LENGTH = ".gpushim-", 25  # with 16 hexadecimal digits: a file on its way to its name
ATTEMPTS = 3


class Directory:
    """A directory on a mount of the container's own, held open for writing in it; `mount` is that mount's id."""

    __slots__ = ("cleared", "fd", "mount")

    def __init__(self, fd: int, mount: bytes) -> None:
        self.fd = fd
        self.mount = mount
        self.cleared = False  # of files that a killed hook has left

    def close(self) -> None:
        posix.close(self.fd)

    def write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Write a new file, whole or not at all; a link or special file of its name is replaced.

        `name` is one component; the umask applies to `mode`.

        Raises:
            OSError: a directory or a mount (OtherMountError) has the name, or the file system refuses.
        """

        def make(new: str) -> None:
            fd = as_owner(self.fd, lambda: posix.open(new, NEW, mode, dir_fd=self.fd))
            try:
                view = memoryview(data)
                while view:
                    view = view[posix.write(fd, view) :]
            finally:
                posix.close(fd)

        self._put(name, make)

    def symlink(self, text: str, name: str, spares: Callable[[str], bool] | None = None) -> bool:
        """Make a link; one with the same text is left alone, other files but directories are replaced.

        `text` is never looked up here. `spares` is called with the text of another link, and returns whether that
        stays.

        Returns:
            whether the link is there.

        Raises OSError as `write` does.
        """
        try:
            as_owner(self.fd, lambda: posix.symlink(text, name, dir_fd=self.fd))
        except FileExistsError:
            return self._replace_by_link(text, name, spares)
        return True

    def _replace_by_link(self, text: str, name: str, spares: Callable[[str], bool] | None) -> bool:
        old = text
        try:
            old = posix.readlink(name, dir_fd=self.fd)
            if old == text:
                return True
        except OSError:
            pass  # not a link, or gone again
        if spares and old != text and spares(old):
            return False
        self._put(name, lambda new: as_owner(self.fd, lambda: posix.symlink(text, new, dir_fd=self.fd)))
        return True

    def _put(self, name: str, make: Callable[[str], None]) -> None:
        self._check_mount(name)
        self._clear()
        for attempt in range(ATTEMPTS):
            new = TEMPORARY + posix.urandom(8).hex()
            try:
                make(new)
                self._rename(new, name)
                return
            except OSError as error:
                self._remove(new)
                # Another hook of the same rootfs may have taken it for a killed one's.
                if not isinstance(error, FileNotFoundError) or attempt == ATTEMPTS - 1:
                    raise

    def _rename(self, new: str, name: str) -> None:
        as_owner(self.fd, lambda: posix.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd))

    def _clear(self) -> None:
        if self.cleared:
            return
        self.cleared = True
        try:
            fd = posix.open(f"/proc/self/fd/{self.fd}", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        except OSError:
            return
        stale = []
        try:
            with posix.scandir(fd) as entries:
                for count, entry in enumerate(entries):
                    if count == bounds.LEFT_BEHIND:
                        break
                    if entry.name.startswith(TEMPORARY) and len(entry.name) == LENGTH:
                        stale.append(entry.name)
        except OSError:
            return
        finally:
            posix.close(fd)
        for name in stale:
            self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            posix.unlink(name, dir_fd=self.fd)
        except OSError:
            pass  # another error is being raised, or none matters

    def _check_mount(self, name: str) -> None:
        # rename(2) gives EBUSY only for mount points of the caller's own mount namespace. In the container's
        # it succeeds and silently takes the mount away (detach_mounts in the kernel's fs/namespace.c).
        try:
            fd = posix.open(name, PATH_ONLY, dir_fd=self.fd)
        except FileNotFoundError:
            return
        try:
            if mount_id(fd) != self.mount:
                raise OtherMountError(name)
            if posix.fstat(fd).st_mode & TYPE == DIRECTORY:
                raise os_error(EISDIR, name)
        finally:
            posix.close(fd)


def make_on(mounts: Collection[bytes], file: bool = False) -> Missing:
    """Return a walk's `missing`, which makes directories (0755 less the umask) as their parent's owner.

    They are made on these mounts alone; on others it is an OtherMountError. With `file`, the last name becomes an
    empty file (0644).
    """

    def missing(directory: int, name: str, words: int) -> bool:
        if mount_id(directory) not in mounts:
            raise OtherMountError(name)
        try:
            if file and not words:
                posix.close(as_owner(directory, lambda: posix.open(name, NEW, 0o644, dir_fd=directory)))
            else:
                as_owner(directory, lambda: posix.mkdir(name, 0o755, dir_fd=directory))
        except FileExistsError:
            pass  # another process was quicker; the walk opens what is there
        return True

    return missing


def as_owner(directory: int, make: Callable[[], T]) -> T:
    """Make something in a directory as the directory's owner, or as this process where that one may not.

    What lies in the image of a user namespace must belong to a user who has an id there: nobody can chown anything
    else in the container. In file systems of a user namespace and on mounts with mapped ids, whoever has no id there
    gets EOVERFLOW (may_create in the kernel's fs/namei.c), the host's root too.

    Args:
        directory: an open directory.
        make: makes it; it is called twice if the owner may not.

    Raises:
        OSError: neither may, or it cannot be made.
    """
    owner, user, group = posix.fstat(directory), posix.geteuid(), posix.getegid()
    if owner.st_uid == user:
        return make()
    try:
        posix.setegid(owner.st_gid)
        posix.seteuid(owner.st_uid)
        return make()
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        pass  # an owner without the right to write there, or without an id in this process's user namespace
    finally:
        posix.seteuid(user)
        posix.setegid(group)
    return make()
