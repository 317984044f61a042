"""Bad images (groups 14 to 17 of docs/testing.md), for the hook as a process.

Its links, the cache and the loader's configuration are what it writes there; the driver's files are runc's mounts.
What a hostile image is after, under the real runc, is in test_hostile.py; here is what may be odd without malice.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.bad_images import CACHE, CONF, SONAME, finish, linked
from e2e.bad_images import root as root
from e2e.bad_images import scene as scene
from e2e.bad_input import Scene, flagged
from unit.gpuhook.trees import DRV, entries, glibc


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


def test_very_many_libraries(scene: Scene, root: Path, pid: int) -> None:
    for number in range(20_000):
        os.symlink("libz.so.1", root / DRV[1:] / f"libx{number}.so")
    assert (finish(scene, root, pid).code, linked(root)) == (0, True)


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


def musl(root: Path) -> None:
    """An image of Alpine's kind."""
    without("etc", "lib64")(root)
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib/ld-musl-x86_64.so.1").touch()


def split(root: Path) -> None:
    """Directories of a distribution before merged-usr."""
    for name in ("lib", "bin", "sbin", "lib64"):
        (root / name).mkdir(exist_ok=True)
    glibc(root)


IMAGES: dict[str, Callable[[Path], None]] = {
    "no /etc": without("etc"),
    "no /lib64": without("lib64"),
    "no /tmp, /dev, /run, /var": without("tmp", "dev", "run", "var"),
    "static program": static,
    "musl": musl,
    "split usr": split,
    "empty": lambda root: without(*os.listdir(root))(root),
}


@pytest.mark.parametrize("case", IMAGES)
def test_poor_images(scene: Scene, root: Path, pid: int, case: str) -> None:
    IMAGES[case](root)
    assert finish(scene, root, pid).code == 0
    assert linked(root) == (case != "empty")


# Group 16: caches and configurations are in test_hostile.py and test_ldcache.py.
COMPAT = "usr/local/cuda/compat"
SECTIONS = struct.pack(
    "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 1 << 63, 1 << 63, 0, 64, 56, 0xFFFF, 64, 0xFFFF, 1
)


def sparse(path: Path) -> None:
    """Much, of which nothing need be read."""
    path.write_bytes(SECTIONS)
    os.truncate(path, 4 << 30)


ELVES: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "cut": lambda path: path.write_bytes(SECTIONS[:40]),
    "endless tables": lambda path: path.write_bytes(SECTIONS),
    "other byte order": lambda path: path.write_bytes(SECTIONS[:5] + b"\2" + SECTIONS[6:]),
    "32 bits": lambda path: path.write_bytes(SECTIONS[:4] + b"\1" + SECTIONS[5:]),
    "4 GB": sparse,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
}


@pytest.mark.parametrize("case", ELVES)
def test_compatibility_libraries(scene: Scene, root: Path, pid: int, case: str) -> None:
    (root / COMPAT).mkdir(parents=True)
    ELVES[case](root / COMPAT / "libcuda.so.570.1")
    assert finish(scene, root, pid).code == 0
    assert entries(root)["libcuda.so.1"] == f"/{SONAME}"


# Group 17.
def test_files_about_the_image_are_never_read(scene: Scene, root: Path, pid: int) -> None:
    for name in ("etc/os-release", "usr/lib/os-release", "etc/passwd", "etc/group", "etc/nsswitch.conf"):
        (root / name).parent.mkdir(exist_ok=True)
        os.mkfifo(root / name)
    assert (finish(scene, root, pid).code, linked(root)) == (0, True)
