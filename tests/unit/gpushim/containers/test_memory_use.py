"""What a container uses of its GPUs' memory and may use, by the kernel's files; tests/e2e asks the simulated NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpushim.containers import memory_use
from gpushim.decision import memory
from gpushim.inventory import nvml_program
from unit.gpushim.decision import inventories

GIB = 1 << 30
LEAF = "/system.slice/docker-1.scope"


class Kernel:
    """Directories for cgroups, in which the controller knows the first two GPUs of the snapshot."""

    def __init__(self, top: Path) -> None:
        self.top, self.inventory = top, inventories.snapshot()
        self.inventory["driver"]["version"] = "615.71"
        for gpu in self.inventory["gpus"]:
            gpu["pci"] = f"00000000:0{gpu['index']}:00.0"
        top.mkdir()
        (top / "cgroup.controllers").write_text("dmem\n")
        self.write("", "dmem.capacity", [80 * GIB, 80 * GIB])

    def write(self, cgroup: str, name: str, values: list[Any]) -> None:
        (self.top / cgroup[1:]).mkdir(parents=True, exist_ok=True)
        lines = [f"nvidia/0000:0{index}:00.0/vidmem {value}\n" for index, value in enumerate(values)]
        (self.top / cgroup[1:] / name).write_text("".join(lines))

    def limit(self, cgroup: str, limits: list[Any], used: list[int]) -> None:
        self.write(cgroup, "dmem.max", limits)
        self.write(cgroup, "dmem.current", used)

    def row(self, cgroup: str = LEAF, devices: str = "0") -> list[tuple[str, int, int | None]]:
        """Return device, use and limit of a container in this cgroup."""
        rows: list[dict[str, Any]] = [{"cgroup": cgroup, "devices": devices.split(",")}]
        assert memory_use.add(rows, self.inventory) == []
        return [(use["device"], use["used"], use["limit"]) for use in rows[0]["memory"]]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(memory_use, "CGROUPS", str(tmp_path / "cgroup"))
    monkeypatch.setattr(memory, "CONTROLLERS", str(tmp_path / "cgroup/cgroup.controllers"))
    return Kernel(tmp_path / "cgroup")


def test_a_limit_of_the_containers_cgroup(kernel: Kernel) -> None:
    kernel.limit(LEAF, [8 * GIB, "max"], [GIB, 2 * GIB])
    assert kernel.row(devices="0,1") == [("0", GIB, 8 * GIB), ("1", 2 * GIB, None)]
    assert kernel.row(devices="2:0") == []


def test_where_the_controller_is_not_enabled_nothing_is_known(kernel: Kernel) -> None:
    (kernel.top / LEAF[1:]).mkdir(parents=True)
    assert kernel.row() == []
    assert kernel.row("/gone") == []
    assert kernel.row("") == []


@pytest.mark.parametrize("own", ["max", 70 * GIB])
def test_a_cgroup_of_the_containers_own_lifts_no_limit(kernel: Kernel, own: Any) -> None:
    kernel.limit(LEAF, [8 * GIB], [3 * GIB])
    kernel.limit(f"{LEAF}/own", [own], [GIB])
    assert kernel.row(f"{LEAF}/own") == [("0", 3 * GIB, 8 * GIB)]
    assert kernel.row(LEAF + "/own" * 1000) == [("0", 3 * GIB, 8 * GIB)]
    kernel.limit(f"{LEAF}/own", [2 * GIB], [GIB])
    assert kernel.row(f"{LEAF}/own") == [("0", GIB, 2 * GIB)]


def test_a_driver_without_limits_is_not_asked(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "_ask_nvml", lambda *_: pytest.fail("NVML is asked"))
    kernel.limit(LEAF, [8 * GIB], [0])
    kernel.row()
    kernel.inventory["driver"]["version"] = "610.1"
    (kernel.top / "dmem.capacity").unlink()
    assert kernel.row() == []


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ([sys.executable, "-c", "import os; os.abort()"], "NVML ended without an answer (code -6)"),
        ([sys.executable, "-c", "print('[]')"], "NVML ended without an answer ([])"),
    ],
)
def test_an_nvml_that_ends_is_said(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, program: list[str], sentence: str
) -> None:
    monkeypatch.setattr(nvml_program, "program", lambda *_: program)
    monkeypatch.setattr(nvml_program, "library", lambda _: "")
    (kernel.top / "dmem.capacity").unlink()
    rows: list[dict[str, Any]] = [{"cgroup": LEAF, "devices": ["0"]}]
    (note,) = memory_use.add(rows, kernel.inventory)
    assert note.startswith(f"limits of GPU memory are not known: {sentence}")
    assert rows[0]["memory"] == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/a/b\n", "/a/b"),
        ("4:devices:/a\n0::/c\n", "/c"),
        ("4:devices:/a\n", ""),
        ("0::/../other\n", ""),
        (None, ""),
    ],
)
def test_the_cgroup_of_a_process(tmp_path: Path, text: str | None, path: str) -> None:
    if text is not None:
        (tmp_path / "cgroup").write_text(text)
    assert memory_use.cgroup(str(tmp_path)) == path
