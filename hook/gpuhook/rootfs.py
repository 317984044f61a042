"""The only way to touch anything below a container's rootfs.

A path is walked from a directory fd, one component at a time: each component is opened without following
links, links are read from their own fd and expanded by hand against the root, and `..` is taken from the
stack of directories already open. So whoever renames or replaces things meanwhile can change which place
inside the root is reached, never lead out of it. The answers, errno included, are those of
openat2(RESOLVE_IN_ROOT) and of a chroot, except that magic links (/proc/self/exe and its like) are read as
ordinary text and that fs.protected_symlinks, which guards a root this walk cannot leave, plays no part.

Writes stay on the mount of the rootfs itself: with `-v /etc:/etc` the container's /etc is the host's.

Out of scope: mounts, device nodes, owners, and finding the rootfs.
Hot path: builtin modules only; a walk costs one open and one fstat for each component.
"""

from __future__ import annotations

import posix
from errno import EFBIG, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EXDEV

PATH_MAX = 4096  # with its NUL: <linux/limits.h>
MAX_LINKS = 40  # MAXSYMLINKS of the kernel's <linux/namei.h>
_TYPE = 0o170000  # S_IFMT, S_IFDIR, S_IFLNK, S_IFREG: inode(7)
_DIRECTORY = 0o040000
_LINK = 0o120000
_REGULAR = 0o100000
_PLACE = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
_NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
_DATA = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


class OtherMountError(OSError):
    """The place lies on another mount than the rootfs: it is the user's or the host's."""

    def __init__(self, path: str) -> None:
        super().__init__(EXDEV, "lies on another mount than the rootfs and is left alone", path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, posix.strerror(number), path)


def mount_id(fd: int) -> bytes:
    """Return the id of the mount that `fd` lies on (proc(5), fdinfo); no other has it while `fd` is open.

    Raises:
        OSError: there is no /proc, or the kernel is older than 3.15.
    """
    info = posix.open(f"/proc/self/fdinfo/{fd}", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        words = posix.read(info, 4096).partition(b"mnt_id:")[2].split(None, 1)
    finally:
        posix.close(info)
    if not words:
        raise _error(EINVAL, "/proc/self/fdinfo")
    return words[0]


def walk(root: int, path: str, follow: bool = True, create_on: bytes = b"") -> int:
    """Open the place that a path names when `root` is the root directory; the caller closes the O_PATH fd.

    Args:
        root: an open directory.
        path: the path; a leading `/` makes no difference.
        follow: whether a link at the very end is followed; with a `/` behind it, it always is.
        create_on: id of the one mount on which missing directories are made (0755 less the umask).

    Raises:
        OSError: with the errno that openat2(2) gives for RESOLVE_IN_ROOT; OtherMountError if a directory
            would have to be made on another mount than `create_on`.
    """
    if not 0 < len(path) < PATH_MAX:
        raise _error(ENAMETOOLONG if path else ENOENT, path)
    stack = [posix.dup(root)]
    todo = path.split("/")[::-1]
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(stack) > 1:
                    posix.close(stack.pop())
                continue
            stack.append(_enter(stack[-1], name, create_on))
            kind = posix.fstat(stack[-1]).st_mode & _TYPE
            if kind == _LINK and (todo or follow):
                links += 1
                if links > MAX_LINKS:
                    raise _error(ELOOP, path)
                todo += _expand(stack)
            elif kind != _DIRECTORY and todo:
                raise _error(ENOTDIR, path)
        return stack.pop()
    finally:
        for fd in stack:
            posix.close(fd)


def _expand(stack: list[int]) -> list[str]:
    """Leave the link on top for the directory that its text counts from; return the text's words, last first."""
    text = posix.readlink("", dir_fd=stack[-1])
    keep = 1 if text.startswith("/") else len(stack) - 1
    while len(stack) > keep:
        posix.close(stack.pop())
    return text.split("/")[::-1]


def _enter(directory: int, name: str, create_on: bytes) -> int:
    try:
        return posix.open(name, _PLACE, dir_fd=directory)
    except FileNotFoundError:
        if not create_on:
            raise
    if mount_id(directory) != create_on:
        raise OtherMountError(name)
    try:
        posix.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:
        pass  # somebody else was quicker; what it is comes out below
    return posix.open(name, _PLACE, dir_fd=directory)


class Rootfs:
    """A container's root directory, held open.

    Args:
        base: a directory whose path is trusted, such as /proc/<pid>/root.
        path: where the rootfs is when `base` is the root directory.

    Raises:
        OSError: there is no such directory.
    """

    __slots__ = ("fd", "mount")

    def __init__(self, base: str, path: str) -> None:
        start = posix.open(base, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        try:
            self.fd = walk(start, path + "/")
        finally:
            posix.close(start)
        self.mount = mount_id(self.fd)

    def exists(self, path: str) -> bool:
        """Tell whether a path in the container, its last link followed, leads anywhere."""
        try:
            posix.close(walk(self.fd, path))
        except OSError:
            return False
        return True

    def read(self, path: str, limit: int) -> bytes:
        """Read a regular file of the container.

        Raises:
            OSError: it is absent, not a regular file (EINVAL), or has more than `limit` bytes (EFBIG).
        """
        place = walk(self.fd, path)
        try:
            facts = posix.fstat(place)
            if facts.st_mode & _TYPE != _REGULAR:
                raise OSError(EINVAL, "is not a regular file", path)
            if facts.st_size > limit:
                raise _error(EFBIG, path)
            # An O_PATH fd cannot be read; opened through /proc it is the same inode, whatever its name is now.
            fd = posix.open(f"/proc/self/fd/{place}", _DATA)
        finally:
            posix.close(place)
        try:
            return _read_all(fd, facts.st_size, limit, path)
        finally:
            posix.close(fd)

    def directory(self, path: str, create: bool = False) -> Directory:
        """Open a directory to write in; `create` makes it and its parents where they are missing.

        Raises:
            OSError: it is absent, no directory, or on another mount (OtherMountError).
        """
        fd = walk(self.fd, path + "/", create_on=self.mount if create else b"")
        try:
            if mount_id(fd) != self.mount:
                raise OtherMountError(path)
        except OSError:
            posix.close(fd)
            raise
        return Directory(fd, self.mount)


class Directory:
    """A directory on the rootfs's own mount, held open for writing in it.

    Args:
        fd: the open directory; `close` closes it.
        mount: id of the mount it lies on.
    """

    __slots__ = ("fd", "mount")

    def __init__(self, fd: int, mount: bytes) -> None:
        self.fd = fd
        self.mount = mount

    def close(self) -> None:
        """Give the fd back."""
        posix.close(self.fd)

    def write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Put a new file in place, whole or not at all; a link or special file there is replaced.

        Args:
            name: one component.
            data: the file's bytes.
            mode: permissions, less the umask.

        Raises:
            OSError: a directory or a mount (OtherMountError) is in the place, or the file system refuses.
        """
        self._check_place(name)
        new = _temporary()
        try:
            fd = posix.open(new, _NEW, mode, dir_fd=self.fd)
            try:
                view = memoryview(data)
                while view:
                    view = view[posix.write(fd, view) :]
            finally:
                posix.close(fd)
            posix.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            _remove(self.fd, new)
            raise

    def symlink(self, text: str, name: str) -> None:
        """Make a link; one with the same text is left alone, other files but directories are replaced.

        Args:
            text: where it points, relative or in the container; never looked up here.
            name: one component.

        Raises OSError as `write` does.
        """
        try:
            posix.symlink(text, name, dir_fd=self.fd)
        except FileExistsError:
            self._replace_by_link(text, name)

    def _replace_by_link(self, text: str, name: str) -> None:
        try:
            if posix.readlink(name, dir_fd=self.fd) == text:
                return
        except OSError:
            pass  # not a link, or gone again
        self._check_place(name)
        new = _temporary()
        try:
            posix.symlink(text, new, dir_fd=self.fd)
            posix.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            _remove(self.fd, new)
            raise

    def _check_place(self, name: str) -> None:
        # rename(2) gives EBUSY only for mount points of the caller's own mount namespace. In the container's
        # it succeeds and silently takes the mount away (detach_mounts in the kernel's fs/namespace.c).
        try:
            fd = posix.open(name, _PLACE, dir_fd=self.fd)
        except FileNotFoundError:
            return
        try:
            if mount_id(fd) != self.mount:
                raise OtherMountError(name)
            if posix.fstat(fd).st_mode & _TYPE == _DIRECTORY:
                raise _error(EISDIR, name)
        finally:
            posix.close(fd)


def _read_all(fd: int, size: int, limit: int, path: str) -> bytes:
    data = b""
    while len(data) <= limit:
        part = posix.read(fd, max(size - len(data), 4096))
        if not part:
            return data
        data += part
    raise _error(EFBIG, path)


def _temporary() -> str:
    return ".gpushim-" + posix.urandom(8).hex()


def _remove(directory: int, name: str) -> None:
    try:
        posix.unlink(name, dir_fd=directory)
    except OSError:
        pass  # the trouble that brought us here is the one to report
