"""Paths inside a driver root: links are followed as by a process that has the root as its "/".

A name that the kernel cannot look up for now (UNKNOWN) is not taken as missing: that is an OSError to the caller.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from gpushim.ground import bounds
from gpushim.paths import trust

if TYPE_CHECKING:
    from gpushim.ground.model import File

UNKNOWN = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE}


def resolve(root: str, path: str) -> str | None:
    """Follow the links of an absolute path inside a root; None if it leads nowhere.

    Raises:
        OSError: one of UNKNOWN.
    """
    top = root.rstrip("/")
    parts: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            location = "/".join((top, *parts, part))
            try:
                is_link = stat.S_ISLNK(os.lstat(location).st_mode)
                target = os.readlink(location) if is_link else ""
            except ValueError:  # a NUL in it
                return None
            except OSError as error:
                _raise_if_unknown(error)
                return None
            if not is_link:
                parts.append(part)
                continue
            links += 1
            if links > bounds.LINKS:
                return None
            if target.startswith("/"):
                parts.clear()
            todo += target.split("/")[::-1]
    return "/" + "/".join(parts)


def nearest(root: str, folder: str) -> str:
    """Return a path with its links followed, up to the first name that leads nowhere."""
    above = "/"
    for part in folder.split("/"):
        path = f"{above.rstrip('/')}/{part}" if part else above
        resolved = resolve(root, path)
        if resolved is None:
            return path
        above = resolved
    return above


def inside(root: str, path: str) -> str:
    return path if root == "/" else root + path


def kind(root: str, path: str | None) -> int:
    """Return the type of a resolved path: S_IFREG, S_IFSOCK, ...; 0 if nothing is there, or an empty file.

    Raises:
        OSError: one of UNKNOWN.
    """
    try:
        status = os.lstat(inside(root, path)) if path else None
    except OSError as error:
        _raise_if_unknown(error)
        status = None
    if status is None or (stat.S_ISREG(status.st_mode) and not status.st_size):
        return 0
    return stat.S_IFMT(status.st_mode)


def is_file(root: str, path: str) -> bool:
    return kind(root, resolve(root, path)) == stat.S_IFREG


def mistrust(root: str, path: str) -> str:
    """Return why others than root may replace or change a directory inside a trusted root; "" if they may not."""
    parts = path.split("/")[1:]
    if not path.startswith("/") or {"", ".", ".."} & set(parts):
        return f"{path} is not written plainly, without //, . and .."
    for end in range(len(parts)):
        directory = "/" + "/".join(parts[: end + 1])
        try:
            status = os.lstat(inside(root, directory))
        except (OSError, ValueError):
            return ""  # and only root can make it
        if not stat.S_ISDIR(status.st_mode):
            return f"{directory} is no directory, or a link to one"
        if not trust.trusted(status.st_uid):
            return f"{directory} belongs to user {status.st_uid}, not root"
        if status.st_mode & 0o022:
            return f"users other than root can write to {directory}"
    return ""


def listing(root: str, folder: str) -> list[str]:
    """List the names in a directory inside a root, sorted; [] if it is missing or not readable.

    Raises:
        OSError: one of UNKNOWN.
    """
    real = resolve(root, folder)
    try:
        return sorted(os.listdir(inside(root, real))) if real else []
    except OSError as error:
        _raise_if_unknown(error)
        return []


def _raise_if_unknown(error: OSError) -> None:
    if error.errno in UNKNOWN:
        raise error


def nonblocking(path: str, flags: int) -> int:
    """Open a file for reading, as open's `opener`: a FIFO must not hang us."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def entry(root: str, path: str, real: str, kind: str) -> File:
    """Return the snapshot's entry of a file: at `path`, where programs look for it, if the kernel finds it there.

    If not, because a link is meant inside the root, the container gets the file at `real`, and a link to it.
    """
    try:
        if os.path.samefile(inside(root, path), inside(root, real)):
            return {"path": path, "kind": kind}
    except OSError:
        pass
    return {"path": real, "kind": kind, "links": [f"{real}::{path}"]}
