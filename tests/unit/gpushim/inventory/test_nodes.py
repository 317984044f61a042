"""Device nodes, real ones made with mknod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushim.inventory import nodes
from gpushim.inventory.ensure import IMEX_DIR
from gpushim.oci import authorization

DEVICES = """Character devices:
  1 mem
195 nvidia-frontend
237 nvidia-caps
238 nvidia-caps-imex-channels
508 nvidia-uvm

Block devices:
195 nvidia-uvm
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("dev/nvidia-caps", "dev/nvidia-caps-imex-channels", "dev/infiniband", "proc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(DEVICES)
    return tmp_path


def make(root: Path, path: str, major: int, minor: int, mode: int = 0o666) -> None:
    os.mknod(f"{root}{path}", 0o020000 | mode, os.makedev(major, minor))
    os.chmod(f"{root}{path}", mode)


def find(root: Path) -> tuple[dict[str, list[int]], list[str]]:
    notes: list[str] = []
    return nodes.find(str(root), f"{root}/proc", notes), notes


def test_numbers_mode_and_owner_are_those_of_the_host(root: Path) -> None:
    make(root, "/dev/nvidia3", 195, 3, 0o660)
    os.chown(root / "dev/nvidia3", 7, 44)
    assert find(root) == ({"/dev/nvidia3": [195, 3, 0o660, 7, 44]}, [])


@pytest.mark.parametrize(
    ("path", "major", "minor"),
    [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-modeset", 195, 254),
        ("/dev/nvidia-uvm", 508, 0),
        ("/dev/nvidia-uvm-tools", 508, 1),
        ("/dev/nvidia-caps/nvidia-cap12", 237, 12),
        ("/dev/nvidia-caps-imex-channels/channel0", 238, 0),
        ("/dev/nvidia-fs0", 300, 0),
        ("/dev/nvidia-nvswitchctl", 301, 255),
        ("/dev/gdrdrv", 302, 0),
        ("/dev/infiniband/uverbs0", 231, 192),
        ("/dev/infiniband/rdma_cm", 10, 58),
    ],
)
def test_found(root: Path, path: str, major: int, minor: int) -> None:
    make(root, path, major, minor)
    assert find(root) == ({path: [major, minor, 0o666, 0, 0]}, [])


@pytest.mark.parametrize("path", ["/dev/null", "/dev/infiniband/umad0", "/dev/nvidia-caps/other", "/dev/xnvidia0"])
def test_not_ours(root: Path, path: str) -> None:
    make(root, path, 195, 0)
    assert find(root) == ({}, [])


@pytest.mark.parametrize(
    ("path", "major", "minor", "words"),
    [
        ("/dev/nvidia0", 510, 0, "its major number is 510, and nvidia has 195"),
        ("/dev/nvidia0", 195, 1, "its minor number is 1"),
        ("/dev/nvidia-uvm", 507, 0, "its major number is 507, and nvidia-uvm has 508"),
        ("/dev/nvidia-caps/nvidia-cap1", 195, 1, "and nvidia-caps has 237"),
    ],
)
def test_wrong_numbers(root: Path, path: str, major: int, minor: int, words: str) -> None:
    make(root, path, major, minor)
    found, notes = find(root)
    assert found == {}
    assert notes[0].startswith(f"{root}{path} is left out: ")
    assert words in notes[0]


def test_driver_that_is_not_loaded(root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n  1 mem\n")
    make(root, "/dev/nvidia-uvm", 508, 0)
    make(root, "/dev/nvidia0", 195, 0)
    found, notes = find(root)
    assert list(found) == ["/dev/nvidia0"]
    assert "the kernel has no driver nvidia-uvm loaded" in notes[0]


def test_without_proc_devices_numbers_are_taken_as_they_are(root: Path) -> None:
    (root / "proc/devices").unlink()
    make(root, "/dev/nvidia-uvm", 507, 0)
    assert list(find(root)[0]) == ["/dev/nvidia-uvm"]


def test_what_is_no_character_device_is_named(root: Path) -> None:
    (root / "dev/nvidia0").write_text("")
    (root / "dev/nvidia1").symlink_to("/dev/null")
    os.mkfifo(root / "dev/nvidia2")
    found, notes = find(root)
    assert found == {}
    assert [note.endswith("it is not a character device") for note in notes] == [True] * 3


def test_order_is_by_number(root: Path) -> None:
    for minor in (10, 2, 0):
        make(root, f"/dev/nvidia{minor}", 195, minor)
    assert list(find(root)[0]) == ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia10"]


def test_features_and_channels(root: Path) -> None:
    make(root, "/dev/nvidia-fs0", 300, 0)
    make(root, "/dev/nvidia-nvswitch0", 301, 0)
    make(root, "/dev/infiniband/rdma_cm", 10, 58)
    make(root, "/dev/nvidia-caps-imex-channels/channel10", 238, 10)
    make(root, "/dev/nvidia-caps-imex-channels/channel2", 238, 2)
    found, _ = find(root)
    assert nodes.features(found) == {
        "gds": ["/dev/nvidia-fs0"],
        "mofed": ["/dev/infiniband/rdma_cm"],
        "gdrcopy": [],
        "nvswitch": ["/dev/nvidia-nvswitch0"],
    }
    assert nodes.imex_channels(found) == [2, 10]


def test_watched_paths_do_not_grow_with_the_channels() -> None:
    many = {f"{IMEX_DIR}/channel{number}": [238, number, 0o666, 0, 0] for number in range(2048)}
    assert nodes.watched({**many, "/dev/nvidia0": []}, []) == [*nodes.EXPECTED, "/dev/nvidia0"]


def test_no_dev_at_all(tmp_path: Path) -> None:
    assert find(tmp_path) == ({}, [])


def test_each_feature_has_nodes_that_are_looked_for() -> None:
    assert nodes.FEATURES.keys() == authorization.FEATURES.keys()
    examples = {
        "gds": "nvidia-fs0",
        "mofed": "infiniband/uverbs0",
        "gdrcopy": "gdrdrv",
        "nvswitch": "nvidia-nvswitch0",
    }
    for feature, pattern in nodes.FEATURES.items():
        path = "/dev/" + examples[feature]  # a new feature: one of its nodes
        assert pattern.fullmatch(path)
        folder, _, name = path.rpartition("/")
        assert any(place == folder and known.fullmatch(name) for place, known in nodes.DIRECTORIES)
        assert {path, folder} & set(nodes.EXPECTED) or feature == "nvswitch"
