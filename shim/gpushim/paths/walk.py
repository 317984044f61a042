"""Walk a path from an open directory, safe against renames and replacements meanwhile: the room's one rule.

A path is walked from a directory fd, one component at a time: each component is opened without following
links, links are read from their own fd and expanded by hand against the root, and `..` is taken from the
stack of directories already open. So others can change which place inside the root is reached, never lead out
of it. The answers, errno included, are those of openat2(RESOLVE_IN_ROOT) and of a chroot, except that magic
links (/proc/self/exe and its like) are read as ordinary text and that fs.protected_symlinks, which guards a
root this walk cannot leave, plays no part.
Hot path: builtin modules only; a walk costs one open and one fstat for each component.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    Allow = Callable[[int, posix.stat_result, int], None]
    Missing = Callable[[int, str, int], bool]

TYPE = 0o170000  # S_IFMT and the types: inode(7); `stat` would be one import more
DIRECTORY, REGULAR, LINK = 0o040000, 0o100000, 0o120000
CHARACTER, SOCKET, FIFO = 0o020000, 0o140000, 0o010000
ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP = 2, 20, 21, 36, 40  # of x86 and Arm; `errno` would be one import more
PATH_ONLY = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC


def os_error(number: int, path: str) -> OSError:
    return OSError(number, posix.strerror(number), path)


def walk(
    root: int, path: str, follow: bool = True, missing: Missing | None = None, allow: Allow | None = None
) -> int:
    """Open the file that a path names when `root` is the root directory; the caller closes the O_PATH fd.

    Args:
        root: an open directory.
        path: the path; a leading `/` makes no difference.
        follow: whether a link at the very end is followed; with a `/` behind it, it always is.
        missing: is called with the directory, the name in it that is not there, and the number of words still to
            come; it makes the name and returns True, leaves it missing (False), or raises. None is for an error.
        allow: is called with the O_PATH fd of each directory and link on the way and of the file itself, its status,
            and the number of words still to come, before anything is done with it; an exception of it ends the walk.

    Raises:
        OSError: with the errno that openat2(2) gives for RESOLVE_IN_ROOT.
    """
    stack = [posix.dup(root)]
    try:
        _descend(stack, path, follow, missing, allow)
        return stack.pop()
    finally:
        for fd in stack:
            posix.close(fd)


def walk_from(top: str, path: str, allow: Allow | None = None) -> int:
    """Walk from the directory at `top`, which is passed to `allow` first; otherwise as `walk`."""
    root = posix.open(top, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        if allow:
            allow(root, posix.fstat(root), len(path))
        return walk(root, path, allow=allow)
    finally:
        posix.close(root)


def walk_to_entry(root: int, path: str, missing: Missing, allow: Allow) -> tuple[int, str, int]:
    """Open the file that a path names, and its directory; all links are followed.

    A dangling link is too: `missing` makes the file where the link points to inside the root. The arguments are those
    of `walk`.

    Returns:
        the directory, the name in it, and the file itself, -1 if `missing` leaves it missing; the caller closes the
        O_PATH fds.

    Raises:
        OSError: as `walk` does; the path ends at a directory without a name for it (EISDIR).
    """
    stack = [posix.dup(root)]
    try:
        name = _descend(stack, path, True, missing, allow)
        if len(stack) < 2 or name in ("", ".", ".."):
            raise os_error(EISDIR, path)
        file = stack.pop()
        return stack.pop(), name, file
    finally:
        for fd in stack:
            posix.close(fd)


def _descend(stack: list[int], path: str, follow: bool, missing: Missing | None, allow: Allow | None) -> str:
    """Walk from the root on the stack to the file, on top of it then; return the last name walked."""
    if not 0 < len(path) < bounds.PATH:
        raise os_error(ENAMETOOLONG if path else ENOENT, path)
    todo = path.split("/")[::-1]
    links, budget = 0, bounds.WORDS
    name = ""
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        budget -= 1
        if budget < 0:  # 40 links with room for 2047 words each would take a second
            raise os_error(ELOOP, path)
        if name == "..":
            if len(stack) > 1:
                posix.close(stack.pop())
            continue
        stack.append(_enter(stack[-1], name, len(todo), missing))
        if stack[-1] < 0:
            break
        status = posix.fstat(stack[-1])
        if allow:
            allow(stack[-1], status, len(todo))
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
    """Replace the link on top by the directory that its text starts from; return the text's words, last first."""
    text = posix.readlink("", dir_fd=stack[-1])
    keep = 1 if text.startswith("/") else len(stack) - 1
    while len(stack) > keep:
        posix.close(stack.pop())
    return text.split("/")[::-1]


def _enter(directory: int, name: str, words: int, missing: Missing | None) -> int:
    try:
        return posix.open(name, PATH_ONLY, dir_fd=directory)
    except FileNotFoundError:
        if missing is None:
            raise
    return posix.open(name, PATH_ONLY, dir_fd=directory) if missing(directory, name, words) else -1
