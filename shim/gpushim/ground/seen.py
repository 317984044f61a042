"""Paths that do not exist, and paths that this user may not see: only the errno distinguishes them.

Code that reports an absent path asks here, or passes PermissionError on to code that reports it with `sentence`.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AS_ROOT = "run this as root"
NAMES = 16384  # in a directory; one with the states of containers has some hundred


def absent(path: str) -> bool:
    """Return whether a path surely does not exist: one that this user may not look up may."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def exists(path: str, links: bool = True) -> bool:
    """Return whether a path exists, as os.path.exists, but let PermissionError pass; `links`: follow them."""
    try:
        os.stat(path, follow_symlinks=links)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def listed(folder: str) -> list[str]:
    """List the names in a directory, sorted, but no more than NAMES of a directory that may be anybody's."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, NAMES))


def refused(pattern: str) -> Iterator[str]:
    """List the directories of an absolute `glob` pattern that this user may not list."""
    base, tail = pattern, ""
    while glob.has_magic(base):
        base, _, name = base.rpartition("/")
        tail = f"{name}/{tail}"
    try:
        names = listed(base)
    except PermissionError:
        yield barrier(base)
        return
    except OSError:
        return
    first, _, tail = tail.partition("/")
    for name in fnmatch.filter(names, first) if tail else ():
        yield from refused(f"{glob.escape(base)}/{glob.escape(name)}/{tail.rstrip('/')}")


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
    listed = ", ".join(dict.fromkeys(paths))
    user = os.geteuid()
    return f"user {user} cannot read {listed}" if user else f"{listed} cannot be read, even by root"
