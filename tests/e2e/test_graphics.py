"""Graphics, display and 32-bit files: what NVIDIA_DRIVER_CAPABILITIES=all brings into a container of real runc."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.witness import settings
from fakehost import Host

LOOK = """
import ctypes, glob, json, os, subprocess
names = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-encode.so.1", "libnvidia-ngx.so.1", "libcuda.so.1",
         "libGLX_indirect.so.0")
def loads(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
cache = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
links = {path: [os.readlink(path), os.path.exists(path)] for path in glob.glob("/dev/dri/by-path/*")}
files = ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/vulkan/icd.d/nvidia_icd.json",
         "/usr/share/nvidia/nvoptix.bin", "/etc/OpenCL/vendors/nvidia.icd")
print(json.dumps({
    "dri": sorted(path for path in glob.glob("/dev/dri/*") if not os.path.isdir(path)),
    "links": links,
    "loads": {name: loads(name) for name in names},
    "narrow": [line.split()[0] for line in cache if "nvidia" in line and "x86-64" not in line and "=>" in line],
    "files": {path: os.path.exists(path) for path in files},
}))
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("graphics") / "root"
    cache = str(trees.TOP / ".cache" / "fakehost")
    return fakehost.build(str(root), 2, drm=True, complete=True, compile_cache=cache)


@pytest.fixture
def bundle(host: Host, debian_root: Path, tmp_path: Path) -> Bundle:
    return Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, host.root))


def look(bundle: Bundle, capabilities: str, wanted: str = "1") -> Any:
    env = [f"NVIDIA_VISIBLE_DEVICES={wanted}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    bundle.ask(*env, args=["python3", "-c", LOOK])
    return json.loads(bundle.run().stdout)


def drm_of(host: Host, index: int) -> set[str]:
    """The DRM nodes of a GPU, as its sysfs says."""
    names = Path(host.root, "sys/bus/pci/devices", host.gpus[index].pci, "drm").iterdir()
    return {f"/dev/dri/{entry.name}" for entry in names if entry.name.startswith(("card", "renderD"))}


def test_all_capabilities_bring_everything(bundle: Bundle, host: Host) -> None:
    seen = look(bundle, "all")
    assert set(seen["loads"].values()) == {True}, seen["loads"]
    assert set(seen["files"].values()) == {True}, seen["files"]
    assert "libGLX_nvidia.so.0" in seen["narrow"]


def test_the_drm_nodes_and_links_are_those_of_the_gpu_granted(bundle: Bundle, host: Host) -> None:
    seen = look(bundle, "graphics")
    assert set(seen["dri"]) == drm_of(host, 1)
    assert len(seen["links"]) == 2
    for path, (target, leads) in seen["links"].items():
        assert host.gpus[1].pci in path
        assert leads, target


def test_without_graphics_there_is_no_drm_node_and_no_icd(bundle: Bundle) -> None:
    seen = look(bundle, "compute,utility")
    assert seen["dri"] == []
    assert seen["links"] == {}
    assert not seen["loads"]["libGLX_nvidia.so.0"]
    assert not seen["files"]["/etc/vulkan/icd.d/nvidia_icd.json"]
    assert seen["narrow"] == []


def test_without_compat32_there_is_no_32_bit_library(bundle: Bundle) -> None:
    assert look(bundle, "compute,utility,video,graphics,display,ngx")["narrow"] == []


def test_a_volume_over_dev_dri_gets_no_link(bundle: Bundle, host: Host, tmp_path: Path) -> None:
    """It may be the host's, so the hook makes no link in it."""
    folder = tmp_path / "dri"
    (folder / "by-path").mkdir(parents=True)
    bundle.plain["mounts"].append(
        {"destination": "/dev/dri", "source": str(folder), "type": "bind", "options": ["rbind", "rw"]}
    )
    bundle.ask(
        "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=graphics", args=shlex.split("ls /dev/dri/by-path")
    )
    assert bundle.run().stdout == ""
    assert list((folder / "by-path").iterdir()) == []
