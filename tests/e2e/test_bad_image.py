"""Bad images, for the hook as a process.

Its links, the cache and the loader's configuration are what it writes there; the driver's files are runc's mounts.
What a hostile image is after, under the real runc, is in test_hostile.py; here is what may be odd without malice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.bad_images import CACHE, CONF, SONAME, finish, linked
from e2e.bad_images import root as root
from e2e.bad_images import scene as scene
from e2e.bad_input import Scene, flagged
from unit.gpuhook.trees import DRV


# Group 14.
def out(path: Path) -> None:
    path.symlink_to("../" * 40 + str(path)[1 : str(path).index("/root/")] + "/canary/file")


def crowd(path: Path) -> None:
    """A directory in its place, with very many names."""
    path.mkdir()
    for number in range(500):
        (path / f"libx{number}.so").touch()


PRESENT: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_bytes(b"x" * 99),
    "empty file": Path.touch,
    "directory": Path.mkdir,
    "full directory": crowd,
    "link to a file inside": lambda path: path.symlink_to("/etc/passwd"),
    "link out, absolute": lambda path: path.symlink_to(str(path)[: str(path).index("/root/")] + "/canary/file"),
    "link out, climbing": out,
    "link out to nothing": lambda path: path.symlink_to(str(path)[: str(path).index("/root/")] + "/canary/new"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "FIFO": os.mkfifo,
    "socket": lambda path: os.mknod(path, 0o140600),
    "device": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
    "mode 000": lambda path: path.touch(0),
}
DESTINATIONS = [SONAME, f"{DRV}/libcuda.so"[1:], CACHE, CONF, f"{CONF}/00-gpushim.conf", f"{CONF}/zz-gpushim.conf"]
DESTINATIONS += ["etc/ld.so.conf", "etc/nvidia", "usr/local/cuda/compat"]


@pytest.mark.parametrize("kind", PRESENT)
def test_what_is_there_already(scene: Scene, root: Path, pid: int, kind: str) -> None:
    """Each destination in turn, so that one after the other is of that kind."""
    for name in DESTINATIONS:
        place = root / name
        for path in (place.parent, place):
            if os.path.lexists(path) and not path.parent.joinpath(path.name).is_dir():
                path.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
        PRESENT[kind](place)
        done = finish(scene, root, pid)
        assert done.code == 0, (name, done)
    assert linked(root) or kind in ("directory", "full directory")


@pytest.mark.parametrize("name", [DRV[1:], "etc", CONF, CACHE])
def test_immutable(scene: Scene, root: Path, pid: int, name: str) -> None:
    (root / CONF).mkdir(exist_ok=True)
    with flagged("i", root / name):
        assert finish(scene, root, pid).code == 0
    assert (root.parent / "log").read_text()


# Group 15.
def without(*names: str) -> Callable[[Path], None]:
    """Take directories out of an image."""

    def take(root: Path) -> None:
        for name in names:
            shutil.rmtree(root / name, ignore_errors=True)

    return take


def static(root: Path) -> None:
    """Nothing but the driver's files and one program."""
    for path in root.iterdir():
        if path.name != "usr":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / "program").touch(0o755)


IMAGES: dict[str, Callable[[Path], None]] = {
    "static program": static,
    "empty": lambda root: without(*os.listdir(root))(root),
}


@pytest.mark.parametrize("case", IMAGES)
def test_poor_images(scene: Scene, root: Path, pid: int, case: str) -> None:
    IMAGES[case](root)
    assert finish(scene, root, pid).code == 0
    assert linked(root) == (case != "empty")


# Group 17.
def test_files_about_the_image_are_never_read(scene: Scene, root: Path, pid: int) -> None:
    for name in ("etc/os-release", "usr/lib/os-release", "etc/passwd", "etc/group", "etc/nsswitch.conf"):
        (root / name).parent.mkdir(exist_ok=True)
        os.mkfifo(root / name)
    assert (finish(scene, root, pid).code, linked(root)) == (0, True)
