"""WSL2 and a Jetson, as far as fixture trees can tell: what a container of theirs sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.witness import settings
from fakehost import platforms

LOOK = """
import ctypes, json, os, stat, sys
names, paths = json.loads(sys.argv[1])
nodes = [os.path.join(folder, name) for folder, _, files in os.walk("/dev") for name in files]
common = {"full", "null", "ptmx", "random", "tty", "urandom", "zero", "console"}
nodes = [path for path in nodes if stat.S_ISCHR(os.lstat(path).st_mode) and not {os.path.basename(path)} & common]
for name in names:
    ctypes.CDLL(name)
print(json.dumps([sorted(nodes), [os.path.exists(path) for path in paths]]))
"""


def look(
    tmp_path: Path, rootfs: Path, kind: str, libraries: list[str], paths: list[str], devices: str = "all"
) -> tuple[list[str], list[bool]]:
    """Run a container on such a system; returns its nodes and which of the paths are there; the libraries load."""
    cache = str(trees.TOP / ".cache" / "fakehost")
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=cache)
    if kind == "wsl":
        platforms.to_wsl(host, cache)
    else:
        platforms.to_tegra(host)
    bundle = Bundle(tmp_path / "bundle", rootfs, settings(tmp_path, host.root))
    args = ["python3", "-c", LOOK, json.dumps([libraries, paths])]
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={devices}", args=args)
    nodes, there = json.loads(bundle.run().stdout)
    return nodes, there


@pytest.mark.parametrize(("devices", "nodes"), [("all", ["/dev/dxg"]), ("0", ["/dev/dxg"]), ("none", [])])
def test_wsl(debian_root: Path, tmp_path: Path, devices: str, nodes: list[str]) -> None:
    paths = [f"{platforms.STORE}/{name}" for name in ("libcuda.so.1.1", "nvcubins.bin")] + ["/usr/bin/nvidia-smi"]
    libraries = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libdxcore.so"]
    assert look(tmp_path, debian_root, "wsl", libraries, paths, devices) == (nodes, [True] * 3)


@pytest.mark.parametrize("devices", ["all", "0", "none"])
def test_tegra(debian_root: Path, tmp_path: Path, devices: str) -> None:
    nodes = ["/dev/dri/card0", "/dev/nvhost-ctrl", "/dev/nvhost-gpu", "/dev/nvmap"]
    paths = ["/lib/firmware/ga10b/gpu.bin", "/etc/vulkan/nvidia_icd.json", "/etc/nv_tegra_release"]
    paths += [f"{platforms.TEGRA_LIB}/libcuda.so", "/usr/lib/aarch64-linux-gnu/libcuda.so"]
    libraries = ["libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"]
    found = look(tmp_path, debian_root, "tegra", libraries, [*paths, "/etc/fakehost.conf"], devices)
    assert found == (nodes if devices != "none" else [], [True] * 5 + [False])


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        (
            "wsl",
            [f"{platforms.WSL_LIB}/libcuda.so.1", f"{platforms.WSL_LIB}/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"],
        ),
        ("tegra", [f"{platforms.TEGRA_LIB}/{name}" for name in platforms.TEGRA_LIBRARIES]),
    ],
)
def test_what_an_image_was_built_with_is_in_nobodys_way(
    debian_root: Path, tmp_path: Path, kind: str, there: list[str]
) -> None:
    """Empty files, as a build under NVIDIA's toolkit leaves them: "file exists", or a library that cannot load."""
    for path in [*there, *(f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1"))]:
        left = debian_root / path[1:]
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(b"")
    libraries = ["libcuda.so.1", *(["libnvidia-ml.so.1"] if kind == "wsl" else [])]
    nodes, found = look(tmp_path, debian_root, kind, libraries, there)
    assert nodes
    assert all(found)


def test_another_gpu_of_a_jetson_is_refused(debian_root: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match='asks for GPU "1", but this host has 1'):
        look(tmp_path, debian_root, "tegra", [], [], "1")
