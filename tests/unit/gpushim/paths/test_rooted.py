"""Paths inside a driver root."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from gpushim.paths import rooted


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/file", "/a/file"),
        ("/a/../a/./file", "/a/file"),
        ("/../../a/file", "/a/file"),
        ("/up/file", "/a/file"),
        ("/absolute", "/a/file"),
        ("/loop", None),
        ("/a/missing", None),
        ("/a/file/below", None),
        ("/", "/"),
    ],
)
def test_resolve(tmp_path: Path, path: str, expected: str | None) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("")
    (tmp_path / "up").symlink_to("../../../a")
    (tmp_path / "absolute").symlink_to("/a/file")
    (tmp_path / "loop").symlink_to("loop")
    assert rooted.resolve(str(tmp_path), path) == expected


def test_resolve_in_the_real_root() -> None:
    assert rooted.resolve("/", "/proc/../usr/bin/python3") == os.path.realpath("/usr/bin/python3")


def test_link_chain_of_forty_one(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("x")
    for number in range(1, 42):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert rooted.resolve(str(tmp_path), "/40") == "/0"
    assert rooted.resolve(str(tmp_path), "/41") is None


def test_name_with_a_nul(tmp_path: Path) -> None:
    assert rooted.resolve(str(tmp_path), "/a\0b") is None


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    kinds = [rooted.kind(str(tmp_path), f"/{name}") for name in ("empty", "file", "link", "fifo", "none")]
    assert kinds == [0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, 0]
    assert rooted.kind(str(tmp_path), None) == 0


def test_listing_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("")
    (tmp_path / "root/d/b").write_text("")
    (tmp_path / "root/d/a").write_text("")
    (tmp_path / "root/out").symlink_to("../outside")
    assert rooted.listing(str(tmp_path / "root"), "/d") == ["a", "b"]
    assert rooted.listing(str(tmp_path / "root"), "/out") == []
    assert rooted.listing(str(tmp_path / "root"), "/d/a") == []


def test_entry_of_a_relative_link_keeps_the_name(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "name").symlink_to("real")
    assert rooted.entry(str(tmp_path), "/name", "/real", "data") == {"path": "/name", "kind": "data"}


def test_entry_of_an_absolute_link_gets_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "name").symlink_to("/real")
    expected = {"path": "/real", "kind": "data", "links": ["/real::/name"]}
    assert rooted.entry(str(tmp_path), "/name", "/real", "data") == expected


@pytest.mark.parametrize("code", sorted(rooted.UNKNOWN | {errno.EACCES}))
def test_what_the_kernel_cannot_look_up_for_now_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    for name in ("lstat", "listdir"):
        monkeypatch.setattr(os, name, fail)
    for ask, path, missing in ((rooted.resolve, "/a", None), (rooted.kind, "/a", 0), (rooted.listing, "/", [])):
        with pytest.raises(OSError) if code in rooted.UNKNOWN else contextlib.nullcontext():  # noqa: PT011
            assert ask(str(tmp_path), path) == missing
