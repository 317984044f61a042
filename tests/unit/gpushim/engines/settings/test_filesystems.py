"""Settings files on file systems of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.engines.settings.files import Change, apply
from gpushim.ground.errors import GpushimError
from unit.gpuhook.sandbox import bind, mount

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")]


def of_memory(top: Path) -> Path:
    mount("tmpfs", top, "mode=755")
    return top


def of_a_disk(top: Path) -> Path:
    image = top.with_name("image")
    subprocess.run(["/usr/sbin/mkfs.ext2", "-q", image, "4M"], check=True, capture_output=True)
    subprocess.run(["mount", "-t", "ext2", "-o", "loop", image, top], check=True, capture_output=True)
    return top


def of_layers(top: Path) -> Path:
    """The file is in the layer below, as in an image, and is copied when it is first written."""
    lower, upper, work = (top.with_name(name) for name in ("lower", "upper", "work"))
    for folder in (lower, upper, work, lower / "etc"):
        folder.mkdir()
    (lower / "etc" / "daemon.json").write_bytes(b"old")
    mount("overlay", top, f"lowerdir={lower},upperdir={upper},workdir={work}")
    return top


@pytest.fixture(params=[of_memory, of_a_disk, of_layers])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where a settings file is, or may be, on another file system."""
    (tmp_path / "top").mkdir()
    top = request.param(tmp_path / "top")
    (top / "etc").mkdir(exist_ok=True)
    yield top / "etc" / "daemon.json"
    subprocess.run(["umount", top], check=True)


def test_a_file_is_changed_and_comes_back(place: Path) -> None:
    place.write_bytes(b"old") if not place.exists() else None
    assert apply([Change(str(place), b"old", b"new")]) == []
    assert place.read_bytes() == b"new"
    assert apply([Change(str(place), b"new", b"old")]) == []
    assert (place.read_bytes(), os.listdir(place.parent)) == (b"old", [place.name])


def test_a_file_that_is_mounted_by_itself(tmp_path: Path) -> None:
    """As an engine's settings in a container are: no file takes its place, and the sentence says where to go."""
    source, place = tmp_path / "srv" / "daemon.json", tmp_path / "etc" / "daemon.json"
    for path in (source, place):
        path.parent.mkdir()
        path.write_bytes(b"old")
    bind(source, place)
    with pytest.raises(GpushimError, match="is a mount point of its own; change the file that is mounted there"):
        apply([Change(str(place), b"old", b"new")])
    assert (place.read_bytes(), os.listdir(place.parent)) == (b"old", [place.name])
    apply([Change(str(source), b"old", b"new")])  # as it says
    assert source.read_bytes() == b"new"
    subprocess.run(["umount", place], check=True)
