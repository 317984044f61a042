"""Who could put another file at a path, by the directories and links on the way to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpushim.config import policy
from gpushim.ground.errors import CONFIG, GpushimError
from gpushim.paths import steps

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ConfigMap's file: a link through ..data."""
    (tmp_path / "map/..1").mkdir(parents=True)
    (tmp_path / "map/..1/x").write_text("data")
    (tmp_path / "map/..data").symlink_to("..1")
    (tmp_path / "map/x").symlink_to("..data/x")
    return tmp_path / "map/x"


def sticky(top: Path, foreign: str) -> None:
    """Let anybody write to the directory, with a name in it, or itself, that is not root's."""
    (top / "map").chmod(0o1777)
    os.lchown(top / foreign, 1234, 0)


def test_links_of_root_in_directories_of_root_are_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(f"{tmp_path}/map/../map")
    assert policy.trusted(str(tmp_path / "there/x"), "x") == b"data"
    assert steps.folders(str(file)) == [str(file.parent), str(file.parent / "..1")]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda top: (top / "map").chmod(0o777), "map"),
        (lambda top: (top / "map").chmod(0o775), "map"),
        (lambda top: (top / "map/..1").chmod(0o777), "map/..1"),
        (lambda top: os.chown(top / "map", 1234, 0), "map"),
        (lambda top: os.lchown(top / "map/..data", 1234, 0), "map/..data"),
        (lambda top: sticky(top, "map/x"), "map"),
        (lambda top: sticky(top, "map"), "map"),
    ],
)
def test_what_others_could_replace_is_refused(
    file: Path, tmp_path: Path, change: Callable[[Path], object], place: str
) -> None:
    change(tmp_path)
    with pytest.raises(GpushimError, match=rf"others than root can put .* since {tmp_path}/{place} is") as told:
        policy.trusted(str(file), "x")
    assert told.value.exit_code == CONFIG


def test_a_sticky_directory_of_root_keeps_roots_names(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert policy.trusted(str(file), "x") == b"data"


def test_a_read_only_mount_keeps_all_names(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.chmod(0o777)
    real, flags = os.statvfs, os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: Flags(flags) if path == str(file.parent) else real(path))
    assert policy.trusted(str(file), "x") == b"data"


class Flags:
    def __init__(self, flags: int) -> None:
        self.f_flag = flags


def test_links_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        [*steps.steps(str(tmp_path / "a"))]
    assert steps.folders(str(tmp_path / "a")) == [str(tmp_path)]
