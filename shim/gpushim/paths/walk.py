"""Resolve a path below a container's rootfs, safe against whoever renames or replaces things meanwhile.

A path is walked from a directory fd, one component at a time: each component is opened without following
links, links are read from their own fd and expanded by hand against the root, and `..` is taken from the
stack of directories already open. So others can change which place inside the root is reached, never lead out
of it. The answers, errno included, are those of openat2(RESOLVE_IN_ROOT) and of a chroot, except that magic
links (/proc/self/exe and its like) are read as ordinary text and that fs.protected_symlinks, which guards a
root this walk cannot leave, plays no part.

Out of scope: what is read or written in the place that was found (rootfs.py, mounts.py).
Hot path: builtin modules only; a walk costs one open and one fstat for each component.
"""

from __future__ import annotations

import posix
from errno import EFBIG, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EOVERFLOW, EXDEV

from gpushim.ground import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, TypeVar

    T = TypeVar("T")

TYPE = 0o170000  # S_IFMT and the types: inode(7); `stat` would be one import more
DIRECTORY, REGULAR, LINK = 0o040000, 0o100000, 0o120000
CHARACTER, SOCKET, FIFO = 0o020000, 0o140000, 0o010000
PLACE = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC


class OtherMountError(OSError):
    """The place lies on another mount than the rootfs: it is the user's or the host's."""

    def __init__(self, path: str) -> None:
        super().__init__(EXDEV, "lies on another mount than the rootfs and is left alone", path)


def os_error(number: int, path: str) -> OSError:
    """Make the error that a system call would have given for a path."""
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
        raise os_error(EINVAL, "/proc/self/fdinfo")
    return words[0]


def held(pid: int, proc: str = "/proc") -> str:
    """Open a process's directory in procfs, for as long as its fd is open, and return a path that leads through it.

    What is looked up there is that process's, or fails once it has ended: another one that gets its number has
    another directory.

    Args:
        pid: of the process.
        proc: where procfs is mounted.

    Returns:
        "/proc/self/fd/N", where N is the fd.

    Raises:
        OSError: there is no such process.
    """
    return f"/proc/self/fd/{posix.open(f'{proc}/{pid}', posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)}"


def read_proc(path: str, limit: int) -> bytes:
    """Read a file of /proc whole; the kernel gives a mount table in pieces of 4 KiB, of which there may be thousands.

    Raises:
        OSError: it cannot be read, or has more than `limit` bytes (EFBIG): what is cut off would be read wrongly.
    """
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        parts, left = [], limit
        while part := posix.read(fd, 1 << 16):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise os_error(EFBIG, path)
    finally:
        posix.close(fd)
    return b"".join(parts)


def walk(
    root: int,
    path: str,
    follow: bool = True,
    create_on: Collection[bytes] | None = None,
    allow: Callable[[int, posix.stat_result], None] | None = None,
) -> int:
    """Open the place that a path names when `root` is the root directory; the caller closes the O_PATH fd.

    Args:
        root: an open directory.
        path: the path; a leading `/` makes no difference.
        follow: whether a link at the very end is followed; with a `/` behind it, it always is.
        create_on: ids of the mounts on which missing directories are made (0755 less the umask); None makes none.
        allow: is called with each directory and link on the way, and the place itself, by its O_PATH fd and its
            status, before anything is done with it; what it raises ends the walk.

    Raises:
        OSError: with the errno that openat2(2) gives for RESOLVE_IN_ROOT; OtherMountError if a directory
            would have to be made on another mount than those of `create_on`.
    """
    stack = [posix.dup(root)]
    try:
        _descend(stack, path, follow, create_on, False, allow)
        return stack.pop()
    finally:
        for fd in stack:
            posix.close(fd)


def walk_to_place(
    root: int,
    path: str,
    create_on: Collection[bytes],
    directory: bool = False,
    allow: Callable[[int, posix.stat_result], None] | None = None,
) -> tuple[int, str, int]:
    """Open the place that a path names, and make an empty file (0644) or directory there if there is nothing.

    Links are followed, a dangling one too: what is made is made where it points to inside the root.

    Args:
        root: an open directory.
        path: the path; a leading `/` makes no difference.
        create_on: ids of the mounts on which the place and missing directories are made.
        directory: whether to make a directory instead of a file.
        allow: as for `walk`.

    Returns:
        the directory, the name in it, and the place itself; the caller closes both O_PATH fds.

    Raises:
        OSError: as `walk` does.
    """
    stack = [posix.dup(root)]
    try:
        name = _descend(stack, path, True, create_on, not directory, allow)
        if len(stack) < 2 or name in ("", ".", ".."):
            raise os_error(EISDIR, path)
        place = stack.pop()
        return stack.pop(), name, place
    finally:
        for fd in stack:
            posix.close(fd)


def as_owner(directory: int, make: Callable[[], T]) -> T:
    """Make something in a directory, as the directory's owner where root may not.

    In file systems of a user namespace and on mounts with mapped ids, whoever has no id there gets EOVERFLOW
    (may_create in the kernel's fs/namei.c), the host's root too.

    Args:
        directory: an open directory.
        make: makes it.

    Returns:
        what `make` returns.

    Raises:
        OSError: the owner may not either.
    """
    try:
        return make()
    except OSError as error:
        if error.errno != EOVERFLOW:
            raise
    owner, user, group = posix.fstat(directory), posix.geteuid(), posix.getegid()
    posix.setegid(owner.st_gid)
    try:
        posix.seteuid(owner.st_uid)
        return make()
    finally:
        posix.seteuid(user)
        posix.setegid(group)


def _descend(
    stack: list[int],
    path: str,
    follow: bool,
    create_on: Collection[bytes] | None,
    file: bool,
    allow: Callable[[int, posix.stat_result], None] | None = None,
) -> str:
    """Walk from the root on the stack to the place, on top of it then; return the last name walked."""
    if not 0 < len(path) < bounds.PATH:
        raise os_error(ENAMETOOLONG if path else ENOENT, path)
    todo = path.split("/")[::-1]
    links, left = 0, bounds.WORDS
    name = ""
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        left -= 1
        if left < 0:  # 40 links with room for 2047 words each would take a second
            raise os_error(ELOOP, path)
        if name == "..":
            if len(stack) > 1:
                posix.close(stack.pop())
            continue
        stack.append(_enter(stack[-1], name, create_on, file and not todo))
        status = posix.fstat(stack[-1])
        if allow:
            allow(stack[-1], status)
        kind = status.st_mode & TYPE
        if kind == LINK and (todo or follow):
            links += 1
            if links > bounds.LINKS:
                raise os_error(ELOOP, path)
            todo += _expand(stack)
        elif kind != DIRECTORY and todo:
            raise os_error(ENOTDIR, path)
    return name


def _expand(stack: list[int]) -> list[str]:
    """Leave the link on top for the directory that its text counts from; return the text's words, last first."""
    text = posix.readlink("", dir_fd=stack[-1])
    keep = 1 if text.startswith("/") else len(stack) - 1
    while len(stack) > keep:
        posix.close(stack.pop())
    return text.split("/")[::-1]


def _enter(directory: int, name: str, create_on: Collection[bytes] | None, file: bool) -> int:
    try:
        return posix.open(name, PLACE, dir_fd=directory)
    except FileNotFoundError:
        if create_on is None:
            raise
    if mount_id(directory) not in create_on:
        raise OtherMountError(name)
    try:
        if file:
            posix.close(as_owner(directory, lambda: posix.open(name, NEW, 0o644, dir_fd=directory)))
        else:
            as_owner(directory, lambda: posix.mkdir(name, 0o755, dir_fd=directory))
    except FileExistsError:
        pass  # somebody else was quicker; what it is comes out below
    return posix.open(name, PLACE, dir_fd=directory)
