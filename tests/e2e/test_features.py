"""GPUDirect Storage, MOFED, GDRCopy, NVSwitch and IMEX channels: their nodes come by the variables users know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.features import LIST, NODES
from e2e.witness import settings
from fakehost import Host, tree

IMEX_MOUNTS = "/var/run/nvidia-container-devices/imex/"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("features") / "root"
    host = fakehost.build(str(root), 2, imex=3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    for name, (major, minor) in NODES.items():
        tree.make_node(host.node(name), major, minor, 0o666, 0, 0)
    tree.write(f"{host.root}/etc/cufile.json", "cufile\n")
    return host


@pytest.fixture
def bundle(host: Host, busybox_tree: Path, tmp_path: Path) -> Bundle:
    root = shutil.copytree(busybox_tree, tmp_path / "root", symlinks=True)
    return Bundle(tmp_path / "bundle", root, settings(tmp_path, host.root))


def seen(bundle: Bundle, *env: str) -> list[str]:
    """Run a container with GPU 0; list what it has besides, nodes without "/dev/"."""
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["sh", "-c", LIST])
    lines = bundle.run().stdout.splitlines()
    nodes = [line for line in lines if line.startswith("/dev/")]
    # No driver stands behind the nodes: this is an open that the device rules let through.
    assert all("No such device or address" in line or "No such device" in line for line in nodes), nodes
    return [line.split()[0].replace("/dev/", "") for line in lines]


@pytest.mark.parametrize(
    ("env", "nodes"),
    [
        ([], []),
        (["NVIDIA_GDS=enabled"], ["nvidia-fs0", "nvidia-fs1", "cufile", "data"]),
        (["NVIDIA_GDRCOPY=enabled"], ["gdrdrv"]),
        (["NVIDIA_NVSWITCH=enabled"], ["nvidia-nvswitch0", "nvidia-nvswitchctl"]),
        (["NVIDIA_MOFED=enabled"], ["infiniband/rdma_cm", "infiniband/uverbs0"]),
        (["NVIDIA_GDS=1"], []),
        (["NVIDIA_GDRCOPY=true", "NVIDIA_MOFED=all", "NVIDIA_NVSWITCH=Enabled", "NVIDIA_GDS= enabled"], []),
        (["NVIDIA_GDRCOPY=enabled", "NVIDIA_GDRCOPY=no"], []),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_a_feature_brings_its_nodes_and_files(bundle: Bundle, env: list[str], nodes: list[str]) -> None:
    assert seen(bundle, *env) == nodes


@pytest.mark.parametrize("devices", ["none", "void", ""])
def test_a_feature_needs_a_gpu(bundle: Bundle, devices: str) -> None:
    env = [f"NVIDIA_{name}=enabled" for name in ("GDS", "GDRCOPY", "NVSWITCH", "MOFED")]
    assert seen(bundle, *env, f"NVIDIA_VISIBLE_DEVICES={devices}") == []


def test_a_feature_that_the_host_lacks_is_left_out(gpu_host: Host, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    bundle.env = settings(tmp_path / "other", gpu_host.root)
    assert not [line for line in seen(bundle, "NVIDIA_GDRCOPY=enabled", "NVIDIA_MOFED=enabled") if "dev" in line]


@pytest.mark.parametrize(("value", "channels"), [("0", [0]), ("2,0,2", [0, 2]), ("all", []), ("none", []), ("", [])])
def test_imex_channels_by_the_variable(bundle: Bundle, value: str, channels: list[int]) -> None:
    found = seen(bundle, f"NVIDIA_IMEX_CHANNELS={value}")
    assert found == [f"nvidia-caps-imex-channels/channel{channel}" for channel in channels]


def test_imex_channels_by_mounts(bundle: Bundle) -> None:
    with open(bundle.env["GPUSHIM_CONFIG"], "a", encoding="utf-8") as config:
        config.write("[requests]\naccept-volume-mounts = true\n")
    bundle.plain["mounts"] += [
        {"destination": IMEX_MOUNTS + name, "source": "/dev/null", "type": "bind", "options": ["bind"]}
        for name in "12"
    ]
    channels = [f"nvidia-caps-imex-channels/channel{channel}" for channel in (1, 2)]
    assert seen(bundle, "NVIDIA_IMEX_CHANNELS=0") == channels


def test_imex_channels_may_be_switched_off(bundle: Bundle) -> None:
    with open(bundle.env["GPUSHIM_CONFIG"], "a", encoding="utf-8") as config:
        config.write("[requests]\nignore-imex-channel-requests = true\n")
    assert seen(bundle, "NVIDIA_IMEX_CHANNELS=0") == []
