"""What is not there, and what this user may not look at: two things that only the errno tells apart.

Whoever says that something is absent asks here, or lets PermissionError pass to whoever tells it with `sentence`.
Out of scope: what root alone may change (engines/places.py).
"""

from __future__ import annotations

import fnmatch
import glob
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AS_ROOT = "run this as root"


def absent(path: str) -> bool:
    """Say whether a path is surely not there: one that this user may not look up may well be."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def exists(path: str, links: bool = True) -> bool:
    """Say whether a path is there, as os.path.exists.

    Args:
        path: of anything.
        links: whether a link is what it leads to.

    Raises:
        PermissionError: this user may not look.
    """
    try:
        os.stat(path, follow_symlinks=links)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def refused(pattern: str) -> Iterator[str]:
    """List the directories on the way of a pattern of `glob` that this user may not list.

    Args:
        pattern: absolute.
    """
    base, rest = pattern, ""
    while glob.has_magic(base):
        base, _, name = base.rpartition("/")
        rest = f"{name}/{rest}"
    try:
        names = os.listdir(base)
    except PermissionError:
        yield barrier(base)
        return
    except OSError:
        return
    first, _, rest = rest.partition("/")
    for name in fnmatch.filter(names, first) if rest else ():
        yield from refused(f"{glob.escape(base)}/{glob.escape(name)}/{rest.rstrip('/')}")


def barrier(path: str) -> str:
    """Return the directory that keeps this user from a path, or the path itself."""
    while True:
        try:
            os.lstat(path)
        except PermissionError:
            path = os.path.dirname(path)
        except OSError:
            return path
        else:
            return path


def sentence(paths: Iterable[str]) -> str:
    """Say that things cannot be seen.

    Args:
        paths: of them.
    """
    listed = ", ".join(dict.fromkeys(paths))
    user = os.geteuid()
    return f"user {user} may not look into {listed}" if user else f"{listed} may not be looked into, even by root"
