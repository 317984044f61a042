"""What the hook does beyond links and cache: CUDA forward compatibility, application profile, parameters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unit.gpuhook.caches import ldconfig, quick_library
from unit.gpuhook.notes import libcuda
from unit.gpuhook.sandbox import picture
from unit.gpuhook.trees import DRV, entries, finish, glibc_image

HOST = ("--driver", "550.54.15", "--cuda", "12.4")
COMPAT = "/usr/local/cuda/compat"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return glibc_image(tmp_path)


def cuda_image(top: Path) -> None:
    """Add a newer libcuda and its kin, as NVIDIA's cuda-compat packages do."""
    folder = top / "usr/local/cuda-13.1/compat"
    folder.mkdir(parents=True)
    (top / "usr/local/cuda").symlink_to("cuda-13.1")
    (folder / "libcuda.so.590.44.01").write_bytes(libcuda())
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    quick_library(folder / "libnvidia-nvvm.so.4", "libnvidia-nvvm.so.4")


def test_a_newer_libcuda_of_the_image_comes_first(root: Path, pid: int) -> None:
    cuda_image(root)
    before = picture(root / "usr/local")
    assert finish(root, pid, *HOST) == ""
    found = entries(root)
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-nvvm.so.4"):
        assert found[name] == f"{COMPAT}/{name}"
    assert found["libnvidia-ml.so.1"] == f"{DRV}/libnvidia-ml.so.1"
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == f"{COMPAT}\n{DRV}\n"
    assert picture(root / "usr/local") == before


def test_the_users_own_ldconfig_keeps_it_first(root: Path, pid: int) -> None:
    cuda_image(root)
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    for name in ("libcuda.so.550", "libnvidia-ml.so.550"):
        quick_library(root / DRV[1:] / name, name.replace("550", "1"))
    finish(root, pid, *HOST)
    ours = entries(root)
    ldconfig(root)
    assert {name: entries(root)[name] for name in ours if "cuda" in name or "nv" in name} == {
        name: path for name, path in ours.items() if "cuda" in name or "nv" in name
    }


@pytest.mark.parametrize("more", [(), ("--driver", "600.1", "--cuda", "13.2"), ("--driver", "", "--cuda", "x")])
def test_an_older_libcuda_of_the_image_does_not(root: Path, pid: int, more: tuple[str, ...]) -> None:
    cuda_image(root)
    assert finish(root, pid, *more) == ""
    assert entries(root)["libcuda.so.1"] == f"{DRV}/libcuda.so.1"
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == f"{DRV}\n"


def test_a_broken_libcuda_of_the_image_is_left_and_logged(root: Path, pid: int) -> None:
    cuda_image(root)
    os.truncate(root / f"{COMPAT[1:]}/libcuda.so.590.44.01", 100)
    (line,) = finish(root, pid, *HOST).splitlines()
    assert json.loads(line)["msg"].startswith(f"gpushim-hook: skipped {COMPAT}/libcuda.so.590.44.01: it is shorter")
    assert entries(root)["libcuda.so.1"] == f"{DRV}/libcuda.so.1"


def test_compatibility_again_changes_nothing(root: Path, pid: int) -> None:
    cuda_image(root)
    finish(root, pid, *HOST)
    before = picture(root)
    finish(root, pid, *HOST)
    assert picture(root) == before


PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


@pytest.mark.parametrize("mask", ["0x9", "0xffffffffffffffff"])
def test_the_profile_names_the_granted_gpus(root: Path, pid: int, mask: str) -> None:
    for _ in range(2):
        assert finish(root, pid, "--profile-mask", mask) == ""
    text = (root / PROFILE).read_text()
    profile = json.loads(text.replace(mask, str(int(mask, 16))))  # the driver reads hexadecimal, JSON does not
    assert profile["profiles"] == [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", int(mask, 16)]}]
    assert profile["rules"] == [{"pattern": [], "profile": "_container_"}]
    assert (root / PROFILE).stat().st_mode & 0o777 == 0o644


def test_a_profile_of_the_image_gives_way(root: Path, pid: int) -> None:
    (root / PROFILE).parent.mkdir(parents=True)
    (root / PROFILE).symlink_to(root.parent / "canary/x")
    assert finish(root, pid, "--profile-mask", "0x1") == ""
    assert os.listdir(root.parent / "canary") == []
    assert not (root / PROFILE).is_symlink()


def test_a_host_file_for_a_container_without_the_drivers_procfs(root: Path, pid: int) -> None:
    assert finish(root, pid, "--cover", f"{root.parent}/params::/proc/driver/nvidia/params") == ""
