"""A file is put in place whole, whoever else does the same in that directory meanwhile."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.paths.replace import content, replace


def test_a_new_file(tmp_path: Path) -> None:
    replace(f"{tmp_path}/x", b"new", 0o640, 7)
    found = (tmp_path / "x").stat()
    assert ((tmp_path / "x").read_bytes(), found.st_mode & 0o777, found.st_mtime_ns) == (b"new", 0o640, 7)
    assert os.listdir(tmp_path) == ["x"]


def test_another_that_does_the_same_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two refreshes can, one of which began before the state directory was removed and made again."""
    rename = os.rename

    def meanwhile(*paths: Any, **folders: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        replace(f"{tmp_path}/x", b"the other's")
        assert (tmp_path / "x").read_bytes() == b"the other's"
        rename(*paths, **folders)

    monkeypatch.setattr(os, "rename", meanwhile)
    replace(f"{tmp_path}/x", b"own")
    assert ((tmp_path / "x").read_bytes(), os.listdir(tmp_path)) == (b"own", ["x"])


def test_what_a_killed_process_has_left(tmp_path: Path) -> None:
    others = [f".y.{16 * '0'}.new", ".x.0123.new", f".x.{16 * 'g'}.new", ".x.new"]
    for name in (f".x.{16 * '0'}.new", f".x.before.{16 * 'f'}.new", *others):
        (tmp_path / name).touch()
    replace(f"{tmp_path}/x", b"own")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "x"])


def test_a_new_file_that_is_swept_away_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def meanwhile(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        replace(f"{tmp_path}/x", b"the other's")
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    replace(f"{tmp_path}/x", b"own")
    assert ((tmp_path / "x").read_bytes(), os.listdir(tmp_path)) == (b"own", ["x"])


@pytest.mark.parametrize("call", ["fsync", "fchmod", "rename"])
def test_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "x").write_text("old")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space"):
        replace(f"{tmp_path}/x", b"new")
    assert ((tmp_path / "x").read_text(), os.listdir(tmp_path)) == ("old", ["x"])


def test_by_the_fd_of_a_directory(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        replace("x", b"new", folder=fd)
    finally:
        os.close(fd)
    assert (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["none", "link", "fifo", "directory"])
def test_what_is_no_file_has_no_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    (tmp_path / "other").write_text("its own")
    made = {"link": lambda: path.symlink_to("other"), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}
    made.get(kind, bool)()
    before = os.listdir("/proc/self/fd")
    assert content(str(path)) is None
    assert os.listdir("/proc/self/fd") == before


def test_content_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert (content(f"{tmp_path}/x"), content(f"{tmp_path}/x", 3)) == (b"12345", b"123")
