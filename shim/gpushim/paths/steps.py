"""The steps from the root directory to a file, links followed: who can put another there, and where that shows.

Out of scope: what files say (policy.py); places below another process's root (paths/places.py).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushim.ground import bounds
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Step:
    """A name on the way to a file.

    Attributes:
        folder: the directory that it is in.
        name: as the path or a link has it.
        status: its own, not that of what it leads to.
    """

    folder: str
    name: str
    status: os.stat_result


def steps(path: str) -> Iterator[Step]:
    """List the names on the way to a file, as the kernel looks them up.

    Args:
        path: absolute.

    Raises:
        OSError: a name is not there, or there are too many links.
    """
    names, folder, links = path.split("/"), "/", 0
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        status = os.lstat(os.path.join(folder, name))
        yield Step(folder, name, status)
        if not stat.S_ISLNK(status.st_mode):
            folder = os.path.join(folder, name)
            continue
        links += 1
        if links > bounds.LINKS:
            raise OSError(40, os.strerror(40))  # ELOOP
        target = os.readlink(os.path.join(folder, name))
        folder = "/" if target.startswith("/") else folder
        names = target.split("/") + names


def replaceable(way: list[Step]) -> str:
    """Return the directory or link by which somebody else could put another file there; "" if there is none.

    A directory that anybody may write to does if it is sticky, root's, and the name in it, too; or on a read-only
    mount, as a pod's ConfigMap is (mode 0777).
    """
    for step in way:
        status = os.stat(step.folder)
        shared = trust.others_may(status)
        if shared and not (_is_sticky(status) and trust.trusted(step.status.st_uid)) and not _read_only(step.folder):
            return step.folder
        if stat.S_ISLNK(step.status.st_mode) and not trust.trusted(step.status.st_uid):
            return os.path.join(step.folder, step.name)
    return ""


def folders(path: str) -> list[str]:
    """List the directories in which it shows that another file is there: the file's own, and those of links to it."""
    found = [os.path.dirname(path)]
    try:
        for step in steps(path):
            if stat.S_ISLNK(step.status.st_mode):
                found.append(step.folder)
            last = step.folder
        found.append(last)
    except OSError:  # as far as the way goes
        pass
    return [*dict.fromkeys(found)]


def _is_sticky(status: os.stat_result) -> bool:
    return status.st_mode & stat.S_ISVTX != 0 and trust.trusted(status.st_uid)


def _read_only(folder: str) -> bool:
    return os.statvfs(folder).f_flag & os.ST_RDONLY != 0
