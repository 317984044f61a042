"""Another program writes a file, or the process is killed, before a call of ours, whichever it is."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushim.paths import exchange

Act = Callable[[Path], object]
# What changes or sees a file. The walk to its directory (posix.open) does neither, so nothing is between its calls.
CALLS = [(os, name) for name in ("open", "read", "pread", "fsync", "rename", "unlink", "mkdir", "stat", "link")]
CALLS.append((exchange, "_renameat2"))
THEIRS = b"what somebody else wrote"


class Killed(BaseException):
    """From here on no call of the process's does anything."""


class Steps:
    """Calls of the kernel by this process, before one of which something happens.

    Args:
        at: before which, from 1 on.
        act: what happens.
        kill: whether the process is then killed: what it does to clean up, does nothing.
        gap: how many calls later that is.
    """

    def __init__(self, at: int, act: Callable[[], object], kill: bool = False, gap: int = 0) -> None:
        self.count, self.at, self.act, self.patch = 0, at, act, pytest.MonkeyPatch()
        self.end = at + gap if kill else sys.maxsize

    def __enter__(self) -> Steps:
        for module, name in CALLS:
            self.patch.setattr(module, name, functools.partial(self._seen, getattr(module, name)))
        return self

    def __exit__(self, kind: object, *_: object) -> bool:
        self.patch.undo()
        return kind is Killed

    def _seen(self, call: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        self.count += 1
        if self.count == self.at:
            count, self.count = self.count, -sys.maxsize  # its own calls are none of ours
            self.act()
            self.count = count
        if self.count >= self.end:
            raise Killed
        return call(*args, **kwargs)


def rename(path: Path) -> None:
    other = path.with_name("theirs")
    other.write_bytes(THEIRS)
    other.rename(path)


def link(path: Path) -> None:
    (path.parents[1] / "elsewhere").write_bytes(THEIRS)
    path.with_name("link").symlink_to("../elsewhere")
    path.with_name("link").rename(path)


def in_place(path: Path) -> None:
    path.write_bytes(THEIRS)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def lay(path: Path, old: bytes | None) -> None:
    for each in [*path.parent.iterdir(), path.parents[1] / "elsewhere"]:
        each.unlink(missing_ok=True)
    if old is not None:
        path.write_bytes(old)


def change(path: Path, old: bytes | None, new: bytes | None) -> list[str]:
    """End what was begun with a file, and exchange it."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = exchange.File(path.name, folder, folder, path.name)
        return exchange.recover(file) + (exchange.compare_and_swap(file, old, new) if old != new else [])
    finally:
        os.close(folder)


def states(path: Path, old: bytes | None, new: bytes | None, act: Act, before: Act = lambda _: None) -> Iterator[str]:
    """Change a file again and again, with an act at one call more each time; yield the refusals, or ""."""
    at = 0
    while True:
        at += 1
        lay(path, old)
        before(path)
        with Steps(at, lambda: act(path)) as steps:
            try:
                change(path, old, new)
                refusal = ""
            except exchange.Changed as error:
                refusal = str(error)
        if steps.count < at:
            assert at > 6
            return
        yield refusal


def contents(path: Path) -> list[bytes]:
    return [each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-gpushim")] + [
        each.read_bytes() for each in path.parent.glob("*.kept-gpushim*")
    ]


def kills(
    path: Path, old: bytes | None, new: bytes | None, act: Act = lambda _: None, gap: int = 0
) -> Iterator[None]:
    """Change a file again and again, with an act and, a few calls later, a kill, at one call more each time."""
    at = 0
    while True:
        at += 1
        lay(path, old)
        with Steps(at, lambda: act(path), kill=True, gap=gap) as steps, contextlib.suppress(exchange.Changed):
            change(path, old, new)
        if steps.count < at:
            assert at > 6
            return
        yield
