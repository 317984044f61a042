"""Hooks from CDI specs of NVIDIA's tools: what becomes of the loader's cache."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from unit.gpuhook.caches import image, ldconfig, library, listing
from unit.gpuhook.notes import libcuda
from unit.gpuhook.nvidia.cdicalls import done
from unit.gpuhook.sandbox import container, picture
from unit.gpuhook.trees import DRV, MACHINE, entries, glibc

LIBS = f"/usr/lib/{MACHINE}-linux-gnu"


def test_the_cache_of_a_folder_of_the_drivers_own(root: Path, pid: int) -> None:
    for name in ("libcuda.so.550", "libnvidia-ml.so.550", "libnvidia-ml.so.99"):
        library(root / DRV[1:] / name, name.split(".so")[0] + ".so.1")
    (root / DRV[1:] / "libcuda.so").symlink_to("libcuda.so.1")
    (root / DRV[1:] / "libtext.so").write_text("/* GNU ld script */")
    (root / DRV[1:] / "libdangling.so.1").symlink_to("nowhere")
    for _ in range(2):
        assert done(root, pid, "update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", DRV) == ""
        before = picture(root)
    assert picture(root) == before
    found = entries(root)
    assert {name: path for name, path in found.items() if path.startswith(DRV)} == {
        name: f"{DRV}/{name}" for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1")
    }
    assert os.readlink(root / DRV[1:] / "libnvidia-ml.so.1") == "libnvidia-ml.so.550"
    assert found["libz.so.1"].startswith("/opt/lib/")
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == f"{DRV}\n"


def test_of_a_folder_of_the_system_only_what_is_mounted_counts(root: Path) -> None:
    top = root / LIBS[1:]
    library(top / "libz.so.1.9", "libz.so.1")
    library(root.parent / "driver", "libcuda.so.1")
    (top / "libcuda.so.550").touch()
    with container(f"mount --bind '{root.parent}/driver' '{top}/libcuda.so.550'") as other:
        assert done(root, other, "update-ldcache", "--folder", LIBS) == ""
    assert entries(root)["libcuda.so.1"] == f"{LIBS}/libcuda.so.1"
    assert entries(root)["libz.so.1"].startswith("/opt/lib/")
    assert not os.path.lexists(top / "libz.so.1")
    assert (root / "etc/ld.so.conf.d/zz-gpushim.conf").read_text() == f"{LIBS}\n"


def test_two_hooks_with_other_folders(root: Path, pid: int) -> None:
    for name in ("one", "two"):
        library(root / name / f"lib{name}.so.1.2", f"lib{name}.so.1")
        assert done(root, pid, "update-ldcache", "--folder", f"/{name}") == ""
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == "/one\n/two\n"
    assert {"libone.so.1", "libtwo.so.1"} <= entries(root).keys()


def test_both_widths_in_the_cache(root: Path, pid: int) -> None:
    library(root / "wide/libcuda.so.550", "libcuda.so.1")
    command = ["/usr/bin/gcc", "-m32", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null"]
    (root / "narrow").mkdir()
    subprocess.run([*command, "-o", str(root / "narrow/libcuda.so.550")], check=True)
    assert done(root, pid, "update-ldcache", "--folder=/wide,/narrow") == ""
    lines = [line for line in listing((root / "etc/ld.so.cache").read_bytes()) if line.startswith("libcuda.so.1 ")]
    assert "libcuda.so.1 (libc6,x86-64) => /wide/libcuda.so.1" in lines
    assert "libcuda.so.1 (libc6) => /narrow/libcuda.so.1" in lines


@pytest.mark.parametrize(
    "words", [[], ["--folder", "/absent"], ["--folder", "/etc/ld.so.conf"], ["--folder", "/opt"]]
)
def test_folders_without_libraries(root: Path, pid: int, words: list[str]) -> None:
    before = picture(root)
    assert done(root, pid, "update-ldcache", *words) == ""
    assert picture(root) == before


def test_soname_links_alone(root: Path, pid: int) -> None:
    library(root / "x/libx.so.1.2", "libx.so.1")
    library(root / "x/liby.so.1.2", "liby.so.1")
    (root / "x/liby.so.1").write_text("a file is no link")
    library(root / "x/libz.so.1.2", "../../etc/z")
    cache = (root / "etc/ld.so.cache").read_bytes()
    assert done(root, pid, "create-soname-symlinks", "--folder", "/x") == ""
    assert sorted(path.name for path in (root / "x").iterdir() if path.is_symlink()) == ["libx.so.1"]
    assert (root / "etc/ld.so.cache").read_bytes() == cache


COMPAT = "/usr/local/cuda/compat"


def compat(root: Path, pid: int, *words: str) -> str:
    folder = root / COMPAT[1:]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcuda.so.590.1").write_bytes(libcuda())
    (folder / "libcuda.so.1").unlink(missing_ok=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.1")
    return done(root, pid, "enable-cuda-compat", *words)


@pytest.mark.parametrize("order", [["enable", "update"], ["update", "enable"]])
def test_a_newer_libcuda_of_the_image(root: Path, pid: int, order: list[str]) -> None:
    library(root / DRV[1:] / "libcuda.so.550", "libcuda.so.1")
    for step in order:
        if step == "enable":
            assert compat(root, pid, "--host-driver-version=550.54", "--host-cuda-version=12.4") == ""
        else:
            assert done(root, pid, "update-ldcache", "--folder", DRV) == ""
    assert entries(root)["libcuda.so.1"] == f"{COMPAT}/libcuda.so.1"
    assert (root / "etc/ld.so.conf.d/00-gpushim-compat.conf").read_text() == f"{COMPAT}\n"


@pytest.mark.parametrize("words", [[], ["--host-driver-version=595.1"], ["--host-driver-version=x"]])
def test_a_libcuda_that_is_not_for_this_host(root: Path, pid: int, words: list[str]) -> None:
    cache = (root / "etc/ld.so.cache").read_bytes()
    assert compat(root, pid, *words) == ""
    assert (root / "etc/ld.so.cache").read_bytes() == cache
    assert not (root / "etc/ld.so.conf.d").exists()


def test_an_earlier_hosts_choice_is_void(root: Path, pid: int) -> None:
    library(root / DRV[1:] / "libcuda.so.595", "libcuda.so.1")
    compat(root, pid, "--host-driver-version=550.54")
    compat(root, pid, "--host-driver-version=595.1")
    done(root, pid, "update-ldcache", "--folder", DRV)
    assert (root / "etc/ld.so.conf.d/00-gpushim-compat.conf").read_text() == ""
    assert entries(root)["libcuda.so.1"] == f"{DRV}/libcuda.so.1"


def test_an_image_of_musl(tmp_path: Path, pid: int) -> None:
    (tmp_path / "config.json").write_text('{"root": {"path": "root"}}')
    root = tmp_path / "root"
    root.mkdir()
    image(root, ("libz.so.1",))
    ldconfig(root)
    glibc(root)
    (root / "etc/alpine-release").touch()
    library(root / "x/libx.so.1.2", "libx.so.1")
    for _ in range(2):
        assert done(root, pid, "update-ldcache", "--folder", "/x") == ""
    assert (root / f"etc/ld-musl-{MACHINE}.path").read_text().splitlines().count("/x") == 1
