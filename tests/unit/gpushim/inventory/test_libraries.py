"""Which file of a library is taken, and the links beside it. Whole inventories are in test_driver_files_golden.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import fakehost
from fakehost import smallelf
from gpushim.ground.machines import CACHE_ABIS
from gpushim.ground.model import File
from gpushim.inventory import driver_files
from gpushim.inventory.loader import BELOW, Loader, read_cache
from unit.gpushim.inventory.golden import LIBC6, loader_cache

VERSION = "535.183.01"
TRIPLET = "usr/lib/x86_64-linux-gnu"


def library(path: Path, soname: str, machine: str = "x86_64") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(smallelf.library(machine, soname))


def cache(root: Path, *entries: tuple[str, str, str]) -> None:
    (root / "etc").mkdir(exist_ok=True)
    listed = [(CACHE_ABIS[machine] | LIBC6, name, path) for machine, name, path in entries]
    (root / "etc/ld.so.cache").write_bytes(loader_cache(listed))


def entries(root: Path, capability: str, machine: str = "x86_64") -> dict[str, File]:
    loader = Loader(str(root), machine, read_cache(str(root), []), [])
    loader.settle(VERSION)
    return {os.path.basename(entry["path"]): entry for entry in driver_files.entries(loader, capability, VERSION, [])}


@pytest.mark.parametrize("capability", driver_files.LIBRARIES)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "i386"])
def test_every_library_of_the_list(tmp_path: Path, machine: str, capability: str) -> None:
    folder = tmp_path / f"usr/lib/{machine}-linux-gnu"
    for name in driver_files.LIBRARIES[capability]:
        library(Path(f"{folder}{BELOW.get(name, '')}/{name}.{VERSION}"), f"{name}.1", machine)
    found = entries(tmp_path, capability, machine)
    assert list(found) == [f"{name}.{VERSION}" for name in driver_files.LIBRARIES[capability]]
    assert {entry["kind"] for entry in found.values()} == {"library32" if machine == "i386" else "library"}


@pytest.mark.parametrize(
    "folder", ["usr/lib", "usr/lib64", "lib64", TRIPLET, f"{TRIPLET}/nvidia/current", "run/opengl-driver/lib"]
)
def test_known_directories(tmp_path: Path, folder: str) -> None:
    library(tmp_path / folder / f"libcuda.so.{VERSION}", "libcuda.so.1")
    assert driver_files.library(str(tmp_path), "libcuda.so", VERSION, "x86_64") == f"/{folder}/libcuda.so.{VERSION}"


@pytest.mark.parametrize("stranger", ["i386", "aarch64"])
@pytest.mark.parametrize("where", ["cache", "directories"])
def test_library_for_another_machine_comes_first(tmp_path: Path, stranger: str, where: str) -> None:
    library(tmp_path / TRIPLET / f"libcuda.so.{VERSION}", "libcuda.so.1", stranger)
    library(tmp_path / f"usr/lib64/libcuda.so.{VERSION}", "libcuda.so.1")
    if where == "cache":
        cache(tmp_path, ("x86_64", "libcuda.so.1", f"/{TRIPLET}/libcuda.so.{VERSION}"))
    assert entries(tmp_path, "compute")[f"libcuda.so.{VERSION}"]["path"] == f"/usr/lib64/libcuda.so.{VERSION}"
    assert driver_files.library(str(tmp_path), "libcuda.so", VERSION, "x86_64") == f"/usr/lib64/libcuda.so.{VERSION}"


def test_other_machines_are_no_trouble_worth_a_note(tmp_path: Path) -> None:
    library(tmp_path / f"usr/lib/libcuda.so.{VERSION}", "libcuda.so.1", "i386")
    cache(tmp_path)
    notes: list[str] = []
    found = driver_files.find(str(tmp_path), VERSION, notes, machine="x86_64")
    assert (found["compute"], notes) == ([], [])
    assert found["compute32"][0]["path"] == f"/usr/lib/libcuda.so.{VERSION}"


def test_damage_is_told_once_though_both_machines_look(tmp_path: Path) -> None:
    cache(tmp_path)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / f"usr/lib/libcuda.so.{VERSION}").write_text("garbage")
    notes: list[str] = []
    driver_files.find(str(tmp_path), VERSION, notes, machine="x86_64")
    assert notes == [f"{tmp_path}/usr/lib/libcuda.so.{VERSION} is left out: it is not an ELF file of this byte order"]


def test_own_version_is_the_loaders_choice(tmp_path: Path) -> None:
    for version in ("1.1.9", "1.1.10", "1.1.11"):
        library(tmp_path / TRIPLET / f"libnvidia-egl-gbm.so.{version}", "libnvidia-egl-gbm.so.1")
    assert list(entries(tmp_path, "graphics")) == ["libnvidia-egl-gbm.so.1.1.11"]
    (tmp_path / TRIPLET / "libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.10")
    assert list(entries(tmp_path, "graphics")) == ["libnvidia-egl-gbm.so.1.1.10"]
    cache(tmp_path, ("x86_64", "libnvidia-egl-gbm.so.1", f"/{TRIPLET}/libnvidia-egl-gbm.so.1.1.9"))
    assert list(entries(tmp_path, "graphics")) == ["libnvidia-egl-gbm.so.1.1.9"]


def test_own_version_that_is_none(tmp_path: Path) -> None:
    for name in ("libnvidia-egl-gbm.so.1.1.0.bak", "libnvidia-egl-gbm.so.old", "libnvidia-egl-gbm2.so.1"):
        library(tmp_path / TRIPLET / name, "libnvidia-egl-gbm.so.1")
    assert entries(tmp_path, "graphics") == {}


def test_wayland_and_wayland2(tmp_path: Path) -> None:
    library(tmp_path / TRIPLET / "libnvidia-egl-wayland2.so.1.0.0", "libnvidia-egl-wayland2.so.1")
    library(tmp_path / TRIPLET / "libnvidia-egl-wayland.so.1.1.9", "libnvidia-egl-wayland.so.1")
    found = {name: entry["soname"] for name, entry in entries(tmp_path, "graphics").items()}
    assert found == {
        "libnvidia-egl-wayland.so.1.1.9": "libnvidia-egl-wayland.so.1",
        "libnvidia-egl-wayland2.so.1.0.0": "libnvidia-egl-wayland2.so.1",
    }


@pytest.mark.parametrize(
    ("capability", "name", "soname", "link"),
    [
        ("compute", "libcuda.so", "libcuda.so.1", "libcuda.so.1::{}/libcuda.so"),
        ("video", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1",
         "libnvidia-opticalflow.so.1::{}/libnvidia-opticalflow.so"),
        ("graphics", "libGLX_nvidia.so", "libGLX_nvidia.so.0",
         f"libGLX_nvidia.so.{VERSION}::{{}}/libGLX_indirect.so.0"),
        ("graphics", "libnvidia-vulkan-producer.so", "", f"libnvidia-vulkan-producer.so.{VERSION}::"
         "{}/libnvidia-vulkan-producer.so"),
    ],
)  # fmt: skip
def test_links_that_are_always_made(tmp_path: Path, capability: str, name: str, soname: str, link: str) -> None:
    library(tmp_path / f"usr/lib64/{name}.{VERSION}", soname)
    assert entries(tmp_path, capability)[f"{name}.{VERSION}"]["links"] == [link.format("/usr/lib64")]


def test_link_of_vdpau_above_its_directory(tmp_path: Path) -> None:
    library(tmp_path / f"usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")
    assert "links" not in entries(tmp_path, "video")[f"libvdpau_nvidia.so.{VERSION}"]
    (tmp_path / "usr/lib64/libvdpau_nvidia.so").symlink_to(f"vdpau/libvdpau_nvidia.so.{VERSION}")
    links = entries(tmp_path, "video")[f"libvdpau_nvidia.so.{VERSION}"]["links"]
    assert links == [f"vdpau/libvdpau_nvidia.so.{VERSION}::/usr/lib64/libvdpau_nvidia.so"]


@pytest.mark.parametrize(
    ("at", "host", "link"),
    [
        ("usr/lib64", "", "../libnvidia-allocator.so.1::/usr/lib64/gbm/nvidia-drm_gbm.so"),
        ("usr/lib64", "usr/lib64/gbm", "../libnvidia-allocator.so.1::/usr/lib64/gbm/nvidia-drm_gbm.so"),
        ("usr/lib64/nvidia", "usr/lib64/gbm",
         f"/usr/lib64/nvidia/libnvidia-allocator.so.{VERSION}::/usr/lib64/gbm/nvidia-drm_gbm.so"),
    ],
)  # fmt: skip
def test_back_end_of_gbm(tmp_path: Path, at: str, host: str, link: str) -> None:
    library(tmp_path / at / f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1")
    library(tmp_path / f"usr/lib64/libEGL_nvidia.so.{VERSION}", "libEGL_nvidia.so.0")
    if host:
        (tmp_path / host).mkdir()
        target = os.path.relpath(tmp_path / at / f"libnvidia-allocator.so.{VERSION}", tmp_path / host)
        (tmp_path / host / "nvidia-drm_gbm.so").symlink_to(target)
    assert entries(tmp_path, "graphics")[f"libEGL_nvidia.so.{VERSION}"]["links"] == [link]


def test_damaged_entries_of_32_bit_libraries_in_the_cache(tmp_path: Path) -> None:
    library(tmp_path / TRIPLET / f"libcuda.so.{VERSION}", "libcuda.so.1")
    cache(
        tmp_path,
        ("x86_64", "libcuda.so.1", f"/{TRIPLET}/libcuda.so.{VERSION}"),
        ("i386", "libcuda.so.1", "/usr/lib/libcuda.so.1"),
    )
    data = (tmp_path / "etc/ld.so.cache").read_bytes()
    (tmp_path / "etc/ld.so.cache").write_bytes(data[:-1])  # the last string does not end
    notes: list[str] = []
    found = driver_files.find(str(tmp_path), VERSION, notes, machine="x86_64")
    assert found["compute"][0]["path"] == f"/{TRIPLET}/libcuda.so.{VERSION}"
    assert len(notes) == 1
    assert "no string ends" in notes[0]


def test_versions_without_any_link(tmp_path: Path) -> None:
    for version in ("535.183.01", "550.54.14"):
        library(tmp_path / f"usr/lib64/libcuda.so.{version}", "libcuda.so.1")
    assert driver_files.versions(str(tmp_path), "x86_64") == ["550.54.14", "535.183.01"]


def test_found_beside_the_main_libraries(tmp_path: Path) -> None:
    """An unusual directory that the cache names for libcuda alone, as after ldconfig -l."""
    host = fakehost.build(str(tmp_path / "host"), 1, libdir="opt/driver/lib", nodes=False)
    shutil.rmtree(f"{host.root}/usr/lib/i386-linux-gnu", ignore_errors=True)
    root = Path(host.root)
    cache(root, ("x86_64", "libcuda.so.1", "/opt/driver/lib/libcuda.so.1"))
    assert f"libvdpau_nvidia.so.{VERSION}" in entries(root, "video")
    assert "libnvidia-egl-gbm.so.1.1.0" in entries(root, "graphics")


@pytest.mark.parametrize("capability", driver_files.LIBRARIES)
@pytest.mark.parametrize("machine", ["x86_64", "i386"])
def test_a_library_that_no_list_knows(tmp_path: Path, machine: str, capability: str) -> None:
    """A new driver's new library, which its others may load, comes with what computes and with what draws."""
    new = tmp_path / f"usr/lib/{machine}-linux-gnu/libnvidia-brandnew.so.{VERSION}"
    library(new, "libnvidia-brandnew.so.1", machine)
    wanted = {"kind": "library32" if machine == "i386" else "library", "soname": "libnvidia-brandnew.so.1"}
    found = entries(tmp_path, capability, machine)
    path = f"/usr/lib/{machine}-linux-gnu/{new.name}"
    assert found == ({new.name: {"path": path, **wanted}} if capability in ("compute", "graphics") else {})


@pytest.mark.parametrize(
    "name",
    [
        "libnvidia-brandnew.so.550.54.14",
        "libnvidia-brandnew.so.535.183",
        "libnvidia-brandnew.so.1535.183.01",
        "libnvidia-brandnew.so.1.535.183.01",
        "libnvidia-brandnew.so.535.183.01.bak",
        "libnvidia-brandnew.so.1",
        "nvidia_brandnew.so.535.183.01",
        "libGL.so.535.183.01",
        "libnvidia-ngx.so.535.183.01",
        "libnvidia-gtk3.so.535.183.01",
    ],
)
def test_what_is_no_unlisted_library_of_this_driver(tmp_path: Path, name: str) -> None:
    library(tmp_path / TRIPLET / name, name)
    assert entries(tmp_path, "compute") == {}


def test_unlisted_library_beside_the_main_ones(tmp_path: Path) -> None:
    """The loader's cache names only SONAMEs, and a library without one stands only in the directory."""
    for name in ("libcuda.so", "libnvidia-brandnew.so"):
        library(tmp_path / f"opt/driver/lib/{name}.{VERSION}", "libcuda.so.1" if "cuda" in name else "")
    cache(tmp_path, ("x86_64", "libcuda.so.1", f"/opt/driver/lib/libcuda.so.{VERSION}"))
    brandnew = f"libnvidia-brandnew.so.{VERSION}"
    assert entries(tmp_path, "compute")[brandnew]["soname"] == brandnew


def test_unlisted_library_that_is_damaged_or_foreign(tmp_path: Path) -> None:
    library(tmp_path / f"{TRIPLET}/libnvidia-other.so.{VERSION}", "libnvidia-other.so.1", "aarch64")
    (tmp_path / f"{TRIPLET}/libnvidia-brandnew.so.{VERSION}").write_text("garbage")
    notes: list[str] = []
    found = driver_files.find(str(tmp_path), VERSION, notes, machine="x86_64")
    assert (found["compute"], found["graphics"]) == ([], [])
    assert [note for note in notes if "left out" in note] == [
        f"{tmp_path}/{TRIPLET}/libnvidia-brandnew.so.{VERSION} is left out: it is not an ELF file of this byte order"
    ]


def test_a_version_of_its_own_that_is_the_name_s_only_one(tmp_path: Path) -> None:
    library(tmp_path / TRIPLET / "libnvidia-api.so.1", "libnvidia-api.so.1")
    assert list(entries(tmp_path, "graphics")) == ["libnvidia-api.so.1"]
