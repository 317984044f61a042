"""An ordinary user: this process goes on as one, and what is hidden from that user is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import scratch

UID = 1000


@contextlib.contextmanager
def user() -> Iterator[int]:
    """Go on as an ordinary user, as whom the tests may run anyway; yields the number."""
    if os.geteuid():
        yield os.geteuid()
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(UID)
    os.seteuid(UID)
    try:
        yield UID
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextlib.contextmanager
def hidden(path: Path) -> Iterator[None]:
    """Take every permission from a file or directory, and give it back."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A directory that others may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir=scratch.top()) as made:
        os.chmod(made, 0o755)
        yield Path(made)
