"""Which machines have an NVIDIA device, and that no unit of systemd's knows more of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpushim.inventory import modules, platforms, plugged

UNITS = Path(__file__).parents[4] / "packaging/systemd"
PATHS = sorted(
    {
        path
        for unit in UNITS.glob("gpushim-refresh*.service")
        for path in re.findall(r"(?m)^ConditionPathExists=\|(/\S+)", unit.read_text())
    }
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without a device, with its own /sys and /proc."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    return tmp_path


def put(root: Path, path: str, text: str = "x") -> None:
    (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (root / path.lstrip("/")).write_text(text)


def has_device(root: Path) -> bool:
    return plugged.has_device(str(root), str(root))


def test_a_machine_without_one(root: Path) -> None:
    assert not has_device(root)


@pytest.mark.parametrize("path", PATHS)
def test_what_units_wait_for_is_a_device(root: Path, path: str) -> None:
    put(root, path)
    assert has_device(root)


def test_units_wait_for_something() -> None:
    assert len(PATHS) >= 4


@pytest.mark.parametrize(
    ("vendor", "kind", "wanted"),
    [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x1a03", "0x030000", False)],
)
def test_pci_devices(root: Path, vendor: str, kind: str, wanted: bool) -> None:
    folder = modules.sys_dir(str(root)) + "/bus/pci/devices/0000:01:00.0"
    assert folder.startswith(os.fspath(root))
    put(Path(folder), "vendor", f"{vendor}\n")
    put(Path(folder), "class", f"{kind}\n")
    assert has_device(root) is wanted


def test_a_tegra_by_its_family(root: Path) -> None:
    put(root, platforms.FAMILY, "Tegra\n")
    assert has_device(root)
