"""WSL2, Tegra and Grace-Hopper from fixture trees: what is found and left out, and when it is no such system."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakehost import GH200, Host, build, ci_cap, gi_cap
from fakehost import platforms as simulated
from gpushim.ground.model import File, Listed
from gpushim.inventory import platforms
from gpushim.paths import rooted
from unit.gpushim.inventory.machine import Machine

CUDA_LINK = "libcuda.so.1::/usr/lib/wsl/lib/libcuda.so"
CSV = "/csv"


@pytest.fixture
def windows(tmp_path: Path) -> Host:
    host = build(str(tmp_path / "host"), 1)
    simulated.to_wsl(host)
    return host


def find_wsl(host: Host) -> tuple[Any, list[str]]:
    notes: list[str] = []
    return platforms.wsl(host.root, host.root, notes), notes


def names(entries: list[File]) -> list[str]:
    return [os.path.basename(entry["path"]) for entry in entries]


def test_wsl_has_one_node_and_watches_it_and_its_directories(windows: Host) -> None:
    found, notes = find_wsl(windows)
    assert found["nodes"] == {"/dev/dxg": [10, 61, 0o666, 0, 0]}
    below = [f"{windows.root}/{path}" for path in ("dev/dxg", "usr/lib/wsl/lib", "usr/lib/wsl/drivers")]
    assert (found["platform"], found["watched"], notes) == ("wsl", below, [])


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("any", ["libdxcore.so", *platforms.STORED[:5], "nvcubins.bin"]),
        ("utility", ["libnvidia-ml.so.1", "nvidia-smi"]),
        ("compute", ["libcuda.so.1"]),
        ("video", ["libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-opticalflow.so.1"]),
        ("graphics", ["libnvoptix.so.1", "libd3d12.so"]),
    ],
)
def test_wsl_files(windows: Host, capability: str, expected: list[str]) -> None:
    (Path(windows.root + simulated.STORE) / "nvidia-smi").unlink()
    assert names(find_wsl(windows)[0]["files"][capability]) == expected


def test_wsl_entries(windows: Host) -> None:
    found = find_wsl(windows)[0]["files"]
    cuda = {"path": "/usr/lib/wsl/lib/libcuda.so.1", "kind": "library", "soname": "libcuda.so.1"}
    assert found["compute"] == [{**cuda, "links": [CUDA_LINK]}]
    assert {"path": f"{simulated.STORE}/libcuda.so.1.1", "kind": "data"} in found["any"]
    link = "/usr/lib/wsl/lib/nvidia-smi::/usr/bin/nvidia-smi"
    assert {"path": "/usr/lib/wsl/lib/nvidia-smi", "kind": "binary", "links": [link]} in found["utility"]


def test_wsl_nvidia_smi_of_the_driver_store(windows: Host) -> None:
    Path(windows.root, "usr/lib/wsl/lib/nvidia-smi").unlink()
    link = f"{simulated.STORE}/nvidia-smi::/usr/bin/nvidia-smi"
    assert find_wsl(windows)[0]["files"]["utility"][-1]["links"] == [link]


@pytest.mark.parametrize("missing", ["dev/dxg", "usr/lib/wsl/lib/libdxcore.so"])
def test_not_wsl(windows: Host, missing: str) -> None:
    Path(windows.root, missing).unlink()
    found, notes = find_wsl(windows)
    assert found is None
    assert len(notes) == (missing != "dev/dxg")  # a node without libraries is worth a word


def test_a_file_in_the_place_of_dxg_is_no_wsl(windows: Host) -> None:
    Path(windows.node("dxg")).unlink()
    Path(windows.node("dxg")).write_text("")
    assert find_wsl(windows) == (None, [])


def test_wsl_without_nvidias_driver_store(windows: Host) -> None:
    shutil.rmtree(windows.root + simulated.STORE)
    found, notes = find_wsl(windows)
    assert names(found["files"]["any"]) == ["libdxcore.so"]
    assert "no directory below /usr/lib/wsl/drivers has libcuda.so.1.1" in notes[0]


def test_wsl_library_that_is_none(windows: Host) -> None:
    Path(windows.root, "usr/lib/wsl/lib/libcuda.so.1").write_text("x" * 99)
    found, notes = find_wsl(windows)
    assert found["files"]["compute"] == []
    assert "libcuda.so.1 is left out: it is not an ELF file" in notes[0]


class FakeNvml(SimpleNamespace):
    class NVMLError(Exception):
        pass

    def __init__(self, **changes: Any) -> None:
        uuid = "GPU-01234567-0123-0123-0123-0123456789ab"
        answers = {
            **dict.fromkeys(("nvmlInit", "nvmlShutdown"), lambda: None),
            "nvmlSystemGetDriverVersion": lambda: "546.33",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12030,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetBrand": lambda index: 5 if index else 99,
            "nvmlDeviceGetUUID": lambda index: f"{uuid}{index}",
            "nvmlDeviceGetName": lambda index: "NVIDIA GeForce RTX 3060",
            "nvmlDeviceGetCudaComputeCapability": lambda index: (8, 6),
            "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=12 << 30),
        }
        super().__init__(**{**answers, **changes})


def fail(*_: Any) -> None:
    raise FakeNvml.NVMLError("GPU access blocked by the operating system")


def wsl_gpus(host: Host, nvml: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Listed, list[str]]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: path)
    notes: list[str] = []
    return platforms.wsl_gpus(host.root, notes, lambda what: None), notes


def test_wsl_gpus_through_nvml(windows: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    found, notes = wsl_gpus(windows, FakeNvml(), monkeypatch)
    assert (found["source"], found["version"], found["cuda"], notes) == ("nvml", "546.33", "12.3", [])
    assert [(gpu["index"], gpu["brand"], gpu["arch"], gpu["memory"], gpu["node"]) for gpu in found["gpus"]] == [
        (0, "Unknown", "8.6", 12288, "/dev/dxg"),
        (1, "GeForce", "8.6", 12288, "/dev/dxg"),
    ]


@pytest.mark.parametrize(
    ("nvml", "word"),
    [(None, "nvidia-ml-py"), (FakeNvml(nvmlInit=fail), "blocked"), (FakeNvml(nvmlDeviceGetCount=fail), "blocked")],
    ids=["no bindings", "no NVML", "NVML fails later"],
)
def test_wsl_without_nvml_has_one_gpu(windows: Host, monkeypatch: pytest.MonkeyPatch, nvml: Any, word: str) -> None:
    found, notes = wsl_gpus(windows, nvml, monkeypatch)
    assert (found["source"], [gpu["index"] for gpu in found["gpus"]]) == ("proc", [0])
    assert word in notes[0]


def test_wsl_without_nvidias_libraries_has_no_gpu(windows: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        Path(windows.root, "usr/lib/wsl/lib", name).unlink()
    found, notes = wsl_gpus(windows, FakeNvml(), monkeypatch)
    assert found["gpus"] == []
    assert "install NVIDIA's driver in Windows" in notes[0]


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A Tegra system with nothing but a directory for lists."""
    for folder in ("etc", "dev", "csv", "usr/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/nv_tegra_release").write_text("# R35\n")
    os.mknod(tmp_path / "dev/nvmap", 0o020660, os.makedev(10, 60))
    (tmp_path / "usr/lib/a.json").write_text("{}")
    return tmp_path


def find_tegra(board: Path, *lines: str, name: str = "l4t.csv") -> tuple[Any, list[str]]:
    (board / "csv" / name).write_text("\n".join(lines) + "\n")
    notes: list[str] = []
    return platforms.tegra(str(board), str(board), CSV, notes), notes


def test_tegra_of_the_fixture(tmp_path: Path) -> None:
    host = build(str(tmp_path), 1)
    simulated.to_tegra(host)
    notes: list[str] = []
    found = platforms.tegra(host.root, host.root, simulated.CSV, notes)
    assert found is not None
    assert list(found["nodes"]) == ["/dev/nvhost-ctrl", "/dev/nvmap", "/dev/nvhost-gpu", "/dev/dri/card0"]
    assert found["nodes"]["/dev/nvhost-gpu"] == [501, 7, 0o660, 0, 44]
    lib = simulated.TEGRA_LIB
    real = f"{lib}/libcuda.so.1.1"
    links = [f"{real}::{lib}/libcuda.so", f"{real}::/usr/lib/aarch64-linux-gnu/libcuda.so"]
    assert found["files"]["any"][:4] == [
        {"path": "/etc/nv_tegra_release", "kind": "data"},
        {
            "path": "/usr/lib/firmware/ga10b",
            "kind": "directory",
            "links": ["/usr/lib/firmware/ga10b::/lib/firmware/ga10b"],
        },
        {"path": "/etc/vulkan/nvidia_icd.json", "kind": "data"},
        {"path": real, "kind": "library", "soname": "libcuda.so.1", "links": links},
    ]
    absent = f"{lib}/libnvdla_of_other_boards.so, /dev/nvhost-vic"
    assert len(found["files"]["any"]) == 6
    assert [note.partition(": ")[2] for note in notes] == [", ".join(sorted(absent.split(", ")))]
    (gpu,) = platforms.tegra_gpus(host.root, found["nodes"], notes)["gpus"]
    assert gpu["problem"] is None
    assert (gpu["index"], gpu["uuid"], gpu["model"]) == (0, "", "NVIDIA Jetson AGX Orin Developer Kit")


@pytest.mark.parametrize(
    "line", ["dev, /dev/absent", "lib, /usr/lib/absent.so", "dev, /dev/*/gpu", "lib, /nowhere/*.so"]
)
def test_tegra_lines_that_match_nothing_are_told(board: Path, line: str) -> None:
    found, notes = find_tegra(board, line)
    assert (found["nodes"], names(found["files"]["any"])) == ({}, ["nv_tegra_release"])
    assert notes == [f"lines of the Tegra CSV files that match nothing on this system: {line.partition(', ')[2]}"]


@pytest.mark.parametrize(
    ("paths", "usable"),
    [
        (["dev/nvmap"], False),
        ([], False),
        (["dev/nvhost-gpu"], True),
        (["dev/nvgpu/igpu0/ctrl"], True),
        (["dev/nvidia0"], True),
    ],
)
def test_tegra_without_a_node_of_the_gpu_cannot_be_used(board: Path, paths: list[str], usable: bool) -> None:
    for path in paths:
        (board / path).parent.mkdir(parents=True, exist_ok=True)
        if not (board / path).exists():
            os.mknod(board / path, 0o020660, os.makedev(501, 0))
    found, notes = find_tegra(board, *(f"dev, /{path}" for path in paths), "dev, /dev/nvgpu/*/ctrl")
    (gpu,) = platforms.tegra_gpus(str(board), found["nodes"], notes)["gpus"]
    assert (gpu["problem"] is None) is usable
    assert usable or "has no device node" in notes[-1]


@pytest.mark.parametrize("line", ["", "   ", "# dev, /dev/nvmap"])
def test_tegra_lines_without_a_word(board: Path, line: str) -> None:
    found, notes = find_tegra(board, line)
    assert (found["nodes"], names(found["files"]["any"]), notes) == ({}, ["nv_tegra_release"], [])


@pytest.mark.parametrize(
    "line",
    [
        "dev",
        "dev /dev/nvmap",
        "blk, /dev/nvmap",
        "dev, nvmap",
        "dev, /usr/lib/a.json",
        "dev, /dev/../dev/nvmap",
        "lib, /usr//lib/a.json",
        "lib, /usr/lib/",
        "lib, /usr/lib/a.json::/etc/passwd",
        "lib, /usr/lib/a\x7f.json",
        f"lib, /{'a' * 2000}",
        "lib, /dev/nvmap",
        "dir, /",
    ],
)
def test_tegra_line_that_is_left_out(board: Path, line: str) -> None:
    found, notes = find_tegra(board, line)
    assert (found["nodes"], names(found["files"]["any"])) == ({}, ["nv_tegra_release"])
    assert len(notes) == 1
    assert notes[0].startswith("left out of the Tegra CSV files: ")


@pytest.mark.parametrize(
    ("line", "kind"), [("lib, /usr/lib/a.json", "data"), ("dir, /usr/lib", "directory"), ("sym, /usr/lib/b", "data")]
)
def test_tegra_kinds(board: Path, line: str, kind: str) -> None:
    (board / "usr/lib/b").symlink_to("a.json")
    found, _ = find_tegra(board, line)
    assert found["files"]["any"][1]["kind"] == kind
    assert found["files"]["any"][1].get("links", []) == (["/usr/lib/a.json::/usr/lib/b"] if "sym" in line else [])


@pytest.mark.parametrize("target", ["/etc/../../../../etc/passwd", "loop"])
def test_tegra_links_never_leave_the_root(board: Path, target: str) -> None:
    (board / "usr/lib/loop").symlink_to(target)
    assert names(find_tegra(board, "sym, /usr/lib/loop")[0]["files"]["any"]) == ["nv_tegra_release"]


def test_tegra_pattern_of_names(board: Path) -> None:
    for minor in (0, 1):
        os.mknod(board / f"dev/card{minor}", 0o020660, os.makedev(226, minor))
    found, _ = find_tegra(board, "dev, /dev/card*", "dev, /dev/render?")
    assert list(found["nodes"]) == ["/dev/card0", "/dev/card1"]


def test_tegra_pattern_of_directories(board: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for path in ("nvgpu/igpu0/ctrl", "nvgpu/igpu0/power", "nvgpu/igpu1/ctrl", "nvgpu/.hidden/ctrl"):
        (board / "dev" / path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(board / "dev" / path, 0o020660, os.makedev(501, 0))
    (board / "dev/nvgpu/out").symlink_to(tmp_path_factory.mktemp("outside"))
    found, _ = find_tegra(board, "dev, /dev/nvgpu/*/ctrl", "dev, /dev/nv*/igpu0/*")
    assert list(found["nodes"]) == ["/dev/nvgpu/igpu0/ctrl", "/dev/nvgpu/igpu1/ctrl", "/dev/nvgpu/igpu0/power"]


def test_tegra_pattern_is_bounded(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in range(5):
        for other in range(5):
            (board / f"usr/lib/{one}/{other}").mkdir(parents=True)
    monkeypatch.setattr(platforms, "ENTRY_LIMIT", 3)
    listed: list[str] = []
    listing = rooted.listing

    def counted(root: str, folder: str) -> list[str]:
        listed.append(folder)
        return listing(root, folder)

    monkeypatch.setattr(rooted, "listing", counted)
    _, notes = find_tegra(board, "dir, /usr/lib/*/*")
    assert "more than 3 nodes and files" in notes[0]
    assert len(listed) <= 1 + 4


def test_tegra_lists_are_bounded(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "LIST_LIMIT", 100)
    found, notes = find_tegra(board, *["dev, /dev/nvmap"] * 10)
    assert (found["nodes"], len(notes)) == ({}, 1)
    monkeypatch.undo()
    monkeypatch.setattr(platforms, "ENTRY_LIMIT", 2)
    found, notes = find_tegra(board, "dev, /dev/nvmap", "lib, /usr/lib/a.json")
    assert (list(found["nodes"]), names(found["files"]["any"])) == (["/dev/nvmap"], ["nv_tegra_release"])
    assert "more than 2 nodes and files" in notes[0]
    _, notes = find_tegra(board, *(f"bad{number}" for number in range(50)))
    assert (len(notes), notes[-1]) == (platforms.NOTE_LIMIT + 1, "left out of the Tegra CSV files: 18 more")


@pytest.mark.parametrize("family", ["tegra234", "Tegra"])
def test_tegra_by_its_family(board: Path, family: str) -> None:
    (board / "etc/nv_tegra_release").unlink()
    assert find_tegra(board, "")[0] is None
    (board / "sys/devices/soc0").mkdir(parents=True)
    (board / "sys/devices/soc0/family").write_text(family + "\n")
    assert find_tegra(board, "dev, /dev/nvmap")[0]["nodes"]


def test_tegra_without_its_lists(board: Path) -> None:
    found, notes = find_tegra(board, "dev, /dev/nvmap", name="cuda.csv")
    assert found is None
    assert notes == ["this is a Tegra system, but none of devices.csv, drivers.csv, l4t.csv is in /csv"]


PLATFORMS = {"wsl": simulated.to_wsl, "tegra": simulated.to_tegra}


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["wsl", "tegra"])
def test_change_makes_the_snapshot_stale(machine: Machine, platform: str) -> None:
    PLATFORMS[platform](machine.build(1))
    machine.refreshed()
    if platform == "wsl":
        Path(machine.root, "usr/lib/wsl/lib/libcuda.so.1").unlink()
    else:
        with open(machine.root + simulated.CSV + "/devices.csv", "a", encoding="ascii") as file:
            file.write("dev, /dev/null\n")
        os.mknod(f"{machine.root}/dev/null", 0o020666, os.makedev(1, 3))
    snapshot = machine.refreshed()
    assert not snapshot["files"].get("compute")
    assert ("/dev/null" in snapshot["nodes"]) == (platform == "tegra")
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_a_grace_hopper(machine: Machine) -> None:
    """GPUs in PCI domains of their own, and memory that host and GPU address alike."""
    first = {**GH200, "pci": "0009:01:00.0", "numa": 0, "minor": 0}
    simulated.to_grace(machine.build([first, {**GH200, "mig": ["1g.12gb"]}], driver="550.54.15", imex=1))
    snapshot = machine.refreshed()
    found = [(gpu["pci"], gpu["numa"], gpu["addressing"], gpu["memory"]) for gpu in snapshot["gpus"]]
    assert found == [("00000009:01:00.0", 0, "ATS", 97871), ("00000019:01:00.0", 1, "ATS", 97871)]
    assert (snapshot["platform"], snapshot["driver"]["version"]) == ("native", "550.54.15")
    (mig,) = snapshot["mig"]
    assert [path for path in mig["nodes"] if "nvidia-caps/" in path] == [
        f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in (gi_cap(1, 7), ci_cap(1, 7, 0))
    ]
