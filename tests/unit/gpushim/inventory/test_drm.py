"""DRM nodes: each GPU's own, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fakehost import gpus as described
from fakehost import kernel, tree
from gpushim.inventory import nodes, procfs


@pytest.fixture
def host(tmp_path: Path) -> Path:
    gpus = described.describe(3, None)
    tree.lay_out(str(tmp_path))
    tree.write_sys(str(tmp_path), gpus)
    kernel.write_drm(str(tmp_path), str(tmp_path), gpus)
    return tmp_path


def gpu(index: int, count: int = 3) -> Any:
    return {"pci": described.describe(count, None)[index].nvml_bus_id.lower(), "drm": [], "links": []}


def add(host: Path, *gpus: Any) -> None:
    procfs.add_sysfs(list(gpus), f"{host}/sys", str(host))


def test_nodes_and_links_of_one_gpu(host: Path) -> None:
    one = gpu(1)
    add(host, one)
    assert one["drm"] == ["/dev/dri/card2", "/dev/dri/renderD129"]
    assert one["links"] == [
        "../card2::/dev/dri/by-path/pci-0000:0f:00.0-card",
        "../renderD129::/dev/dri/by-path/pci-0000:0f:00.0-render",
    ]


def test_no_node_is_anothers(host: Path) -> None:
    gpus = [gpu(index) for index in range(3)]
    add(host, *gpus)
    paths = [path for one in gpus for path in one["drm"]]
    assert (
        sorted(paths) == sorted(f"/dev/dri/{name}" for name in os.listdir(host / "dev/dri") if name[-1].isdigit())[1:]
    )
    assert "/dev/dri/card0" not in paths  # the management controller's


def test_without_by_path_there_are_no_links(host: Path) -> None:
    for link in (host / "dev/dri/by-path").iterdir():
        link.unlink()
    one = gpu(0)
    add(host, one)
    assert (len(one["drm"]), one["links"]) == (2, [])


@pytest.mark.parametrize("target", ["/dev/dri/card2", "../../null", "../by-path/card2", "../card9", "card2"])
def test_odd_links_are_left_out(host: Path, target: str) -> None:
    for link in (host / "dev/dri/by-path").iterdir():
        link.unlink()
        link.symlink_to(target)
    (host / "dev/dri/by-path/file").write_text("")
    one = gpu(1)
    add(host, one)
    assert one["links"] == []


@pytest.mark.parametrize("pci", ["", "00000000:ff:00.0"])
def test_gpus_without_drm(host: Path, pci: str) -> None:
    one = {**gpu(1), "pci": pci, "drm": ["x"]}
    add(host, one)
    assert (one["drm"], one["links"]) == ([], [])


@pytest.mark.parametrize(
    ("pci", "name"),
    [
        ("00000000:07:00.0", "0000:07:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("0000000f:3b:00.0", "000f:3b:00.0"),
        ("00010000:07:00.0", "10000:07:00.0"),
    ],
)
def test_names_of_sysfs(pci: str, name: str) -> None:
    assert procfs.sysfs_name(pci) == name


def test_only_the_named_ones_are_among_the_nodes(host: Path) -> None:
    found = nodes.find(str(host), f"{host}/proc", [], ["/dev/dri/card2", "/dev/dri/card7"])
    assert found == {"/dev/dri/card2": [226, 2, 0o660, 0, 44]}


def test_a_drm_node_of_another_driver_is_left_out(host: Path) -> None:
    tree.write(f"{host}/proc/devices", "Character devices:\n226 drm\n195 nvidia\n")
    os.unlink(host / "dev/dri/card2")
    os.mknod(host / "dev/dri/card2", 0o020666, os.makedev(1, 3))
    notes: list[str] = []
    assert nodes.find(str(host), f"{host}/proc", notes, ["/dev/dri/card2"]) == {}
    assert "its major number is 1, and drm has 226" in notes[0]
