"""The driver's files: which are found, under which names, and what is left out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import fakehost
from gpushim.ground.model import File
from gpushim.inventory import driver_files

VERSION = "535.183.01"
LIB = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(fakehost.build(str(tmp_path), 1).root)


def find(root: Path, version: str = VERSION) -> tuple[dict[str, list[File]], list[str]]:
    notes: list[str] = []
    return driver_files.find(str(root), version, notes), notes


def entry(found: dict[str, list[File]], ending: str) -> File:
    of_64_bits = [group for key, group in found.items() if not key.endswith("32")]
    match, *others = [file for group in of_64_bits for file in group if file["path"].endswith(ending)]
    assert all(other == match for other in others)  # the plan takes any of them
    return match


def test_a_path_under_two_capabilities_has_one_entry(root: Path) -> None:
    found, _ = find(root)
    of_path: dict[str, File] = {}
    for group in found.values():
        assert all(of_path.setdefault(file["path"], file) == file for file in group)


def test_no_32_bit_files_beside_other_machines(root: Path) -> None:
    assert not [key for key in driver_files.find(str(root), VERSION, [], machine="aarch64") if key.endswith("32")]


def test_link_for_linking_only_where_the_host_has_it(root: Path) -> None:
    (root / LIB / "libnvidia-ml.so").unlink()
    (root / LIB / "libcuda.so").unlink()
    found, _ = find(root)
    assert "links" not in entry(found, f"libnvidia-ml.so.{VERSION}")
    assert "links" in entry(found, f"libcuda.so.{VERSION}")  # programs dlopen it


def test_another_version_finds_no_library(root: Path) -> None:
    found, _ = find(root, "535.183.0")
    names = {os.path.basename(file["path"]) for group in found.values() for file in group if "soname" in file}
    assert names  # they have versions of their own
    assert all(name.startswith("libnvidia-egl-") for name in names)


def test_two_versions_side_by_side(root: Path) -> None:
    other = root / LIB / "libcuda.so.550.54.14"
    shutil.copy(root / LIB / f"libcuda.so.{VERSION}", other)
    (root / LIB / "libcuda.so.1").unlink()
    (root / LIB / "libcuda.so.1").symlink_to(other.name)
    found, _ = find(root)
    assert entry(found, f"libcuda.so.{VERSION}")["soname"] == "libcuda.so.1"
    assert driver_files.versions(str(root))[0] == "550.54.14"


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "fifo", "directory", "loop"])
def test_without_a_cache_the_usual_directories_do(root: Path, damage: str) -> None:
    cache = root / "etc/ld.so.cache"
    whole = cache.read_bytes()
    cache.unlink()
    if damage == "garbage":
        cache.write_bytes(b"garbage")
    elif damage == "truncated":
        cache.write_bytes(whole[:300])
    elif damage == "fifo":
        os.mkfifo(cache)
    elif damage == "directory":
        cache.mkdir()
    elif damage == "loop":
        cache.symlink_to("ld.so.cache")
    found, notes = find(root)
    assert entry(found, f"libcuda.so.{VERSION}")
    assert len(notes) == 1
    assert "ld.so.cache" in notes[0]


def test_unusual_directory_through_the_cache(tmp_path: Path) -> None:
    fakehost.build(str(tmp_path), 1, libdir="opt/nvidia/lib")
    assert entry(find(tmp_path)[0], "libcuda.so." + VERSION)["path"] == f"/opt/nvidia/lib/libcuda.so.{VERSION}"


@pytest.mark.parametrize("data", [b"", b"\x7fELF truncated", b"no library"])
def test_damaged_library_is_left_out_and_the_others_stay(root: Path, data: bytes) -> None:
    (root / LIB / f"libnvidia-nvvm.so.{VERSION}").write_bytes(data)
    found, notes = find(root)
    assert not [file for file in found["compute"] if "nvvm" in file["path"]]
    assert entry(found, f"libcuda.so.{VERSION}")
    assert bool(notes) == bool(data)  # an empty file counts as absent


def test_dangling_link(root: Path) -> None:
    (root / LIB / f"libcuda.so.{VERSION}").unlink()
    found, _ = find(root)
    assert not [file for file in found["compute"] if "libcuda.so" in file["path"]]


def test_alternatives_of_debian(root: Path) -> None:
    """Debian: libcuda.so.1 and nvidia-smi are links through /etc/alternatives."""
    real = root / LIB / "nvidia/current"
    real.mkdir(parents=True)
    (root / "etc/alternatives").mkdir()
    (root / LIB / f"libcuda.so.{VERSION}").rename(real / f"libcuda.so.{VERSION}")
    (root / LIB / "libcuda.so.1").unlink()
    (root / LIB / "libcuda.so.1").symlink_to("/etc/alternatives/cuda")
    (root / "etc/alternatives/cuda").symlink_to(f"/{LIB}/nvidia/current/libcuda.so.{VERSION}")
    assert entry(find(root)[0], f"libcuda.so.{VERSION}")["path"] == f"/{LIB}/nvidia/current/libcuda.so.{VERSION}"


def test_links_never_leave_the_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / f"libcuda.so.{VERSION}"
    shutil.move(root / LIB / f"libcuda.so.{VERSION}", outside)
    (root / LIB / f"libcuda.so.{VERSION}").symlink_to(os.path.relpath(outside, root / LIB))
    assert not [file for file in find(root)[0]["compute"] if "libcuda.so" in file["path"]]


@pytest.mark.parametrize(
    ("name", "lost"), [("libcuda", "find no CUDA"), ("libnvidia-ml", "nvidia-smi in containers finds no driver")]
)
def test_library_without_which_the_others_are_of_no_use(root: Path, name: str, lost: str) -> None:
    assert driver_files.lacking(str(root), VERSION) == []
    (root / LIB / f"{name}.so.{VERSION}").unlink()
    (sentence,) = driver_files.lacking(str(root), VERSION)
    assert f"{name}.so.{VERSION} below {root}" in sentence
    assert lost in sentence


def test_a_name_that_is_not_utf_8_is_left_out(root: Path) -> None:
    name = f"libnvidia-opencl.so.{VERSION}"
    odd = root / "usr/lib" / os.fsdecode(b"\xff")
    odd.mkdir()
    (root / LIB / name).rename(odd / name)
    (root / LIB / name).symlink_to(f"../{odd.name}/{name}")
    found, notes = find(root)
    kept = driver_files.usable(found, notes)
    assert not [file for group in kept.values() for file in group if f"{odd.name}/" in file["path"]]
    assert {file["path"] for file in kept["utility"]} == {file["path"] for file in found["utility"]}
    assert rf"/usr/lib/\udcff/{name} is left out: its name or a link to it is not UTF-8; rename it" in notes
