"""/proc/driver/nvidia, in the shapes that drivers write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.inventory import procfs


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    (tmp_path / "driver/nvidia/gpus").mkdir(parents=True)
    return tmp_path / "driver/nvidia"


def add_gpu(nvidia: Path, name: str, minor: str, **fields: str) -> None:
    lines = {"Model": "NVIDIA H200", "GPU UUID": "GPU-1", "Bus Location": name, "Device Minor": minor, **fields}
    (nvidia / "gpus" / name).mkdir()
    text = "".join(f"{key}: \t {value}\n" for key, value in lines.items())
    (nvidia / "gpus" / name / "information").write_text(text)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)  Thu",
            "550.54.14",
        ),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.65  Tue", "580.65"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  550.54.15  Release", "550.54.15"),
        ("something else", ""),
        ("", ""),
    ],
)
def test_module_version(nvidia: Path, line: str, version: str) -> None:
    (nvidia / "version").write_text(line + "\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14) \n")
    assert procfs.module_version(str(nvidia.parent.parent)) == version


def test_no_module(tmp_path: Path) -> None:
    assert procfs.module_version(str(tmp_path)) is None
    assert procfs.gpus(str(tmp_path), []) == []


def test_gpus_come_in_pci_order_with_their_minors(nvidia: Path) -> None:
    add_gpu(nvidia, "0000:b1:00.0", "0")
    add_gpu(nvidia, "0000:0a:00.0", "12")
    add_gpu(nvidia, "10000:01:00.0", "3")
    found = procfs.gpus(str(nvidia.parent.parent), [])
    assert [(gpu["index"], gpu["minor"], gpu["node"]) for gpu in found] == [
        (0, 12, "/dev/nvidia12"),
        (1, 0, "/dev/nvidia0"),
        (2, 3, "/dev/nvidia3"),
    ]
    assert [gpu["pci"] for gpu in found] == ["00000000:0a:00.0", "00000000:b1:00.0", "00010000:01:00.0"]


def test_gpu_that_was_never_used_has_no_uuid_yet(nvidia: Path) -> None:
    add_gpu(nvidia, "0000:01:00.0", "0", **{"GPU UUID": "GPU-????????-????-????-????-????????????"})
    assert procfs.gpus(str(nvidia.parent.parent), [])[0]["uuid"] == ""


@pytest.mark.parametrize("minor", ["", "x", "-1", "1234"])
def test_gpu_without_a_minor_is_left_out_with_a_note(nvidia: Path, minor: str) -> None:
    add_gpu(nvidia, "0000:01:00.0", minor)
    add_gpu(nvidia, "0000:02:00.0", "1")
    notes: list[str] = []
    assert [gpu["minor"] for gpu in procfs.gpus(str(nvidia.parent.parent), notes)] == [1]
    assert "GPU 0000:01:00.0 is left out" in notes[0]


def test_gpu_with_instances_is_in_mig_mode(nvidia: Path) -> None:
    add_gpu(nvidia, "0000:01:00.0", "4")
    (nvidia / "capabilities/gpu4/mig/gi2").mkdir(parents=True)
    assert procfs.gpus(str(nvidia.parent.parent), [])[0]["mig"] is True


def test_mig_nodes_from_the_access_files(nvidia: Path) -> None:
    (nvidia / "capabilities/gpu1/mig/gi2/ci0").mkdir(parents=True)
    (nvidia / "capabilities/gpu1/mig/gi2/access").write_text("DeviceFileMinor: 30\nDeviceFileMode: 292\n")
    (nvidia / "capabilities/gpu1/mig/gi2/ci0/access").write_text("DeviceFileMinor: 31\n")
    expected = ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert procfs.mig_nodes(str(nvidia.parent.parent), 1, 2, 0) == expected
    assert procfs.mig_nodes(str(nvidia.parent.parent), 1, 2, 1) == []


def test_mig_nodes_from_the_list(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    text = "config 1\nmonitor 2\ngpu1/gi2/access 30\ngpu1/gi2/ci0/access 31\ngpu11/gi2/access 99\n"
    (tmp_path / "driver/nvidia-caps/mig-minors").write_text(text)
    expected = ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert procfs.mig_nodes(str(tmp_path), 1, 2, 0) == expected
    assert procfs.mig_nodes(str(tmp_path), 11, 2, 0) == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("A: 1\nModifyDeviceFiles: 1\nB: 1\n", "A: 1\nModifyDeviceFiles: 0\nB: 1\n"),
        ("ModifyDeviceFiles: 0\n", ""),
        ("ModifyDeviceFiles: 10\nModifyDeviceFiles: 1 2\n", ""),
        ("NotModifyDeviceFiles: 1\n", ""),
        ("", ""),
    ],
)
def test_parameters_that_containers_see(nvidia: Path, text: str, seen: str) -> None:
    (nvidia / "params").write_text(text)
    assert procfs.restricted_params(str(nvidia.parent.parent)) == seen


def test_no_parameters(tmp_path: Path) -> None:
    assert procfs.restricted_params(str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("ModifyDeviceFiles: 1\nDeviceFileUID: 3\nDeviceFileGID: 44\nDeviceFileMode: 432\n", (0o660, 3, 44)),
        ("ModifyDeviceFiles: 0\nDeviceFileMode: 432\n", None),
        ("DeviceFileMode: 4516\n", (0o644, 0, 0)),  # 0o10644: permissions only
        ("DeviceFileMode: 0x1b0\nDeviceFileUID:\n", (0o666, 0, 0)),
        ("DeviceFileMode: \u00b2\nDeviceFileUID: 4294967296\nDeviceFileGID: " + "9" * 5000, (0o666, 0, 0)),
        ("", (0o666, 0, 0)),
    ],
)
def test_device_files(nvidia: Path, text: str, seen: object) -> None:
    (nvidia / "params").write_text(text)
    assert procfs.device_files(str(nvidia.parent.parent)) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n", [(30, 0o444, True)]),
        ("DeviceFileMinor: 30\nDeviceFileMode: 256\nDeviceFileModify: 0\n", [(30, 0o400, False)]),
        ("DeviceFileMinor: 30\n", [(30, 0o666, True)]),
        ("DeviceFileMinor: x\n", []),
        ("DeviceFileMinor: \u00b2\n", []),
        ("", []),
    ],
)
@pytest.mark.parametrize("place", ["mig/config", "mig/monitor", "gpu3/mig/gi2/access", "gpu3/mig/gi2/ci1/access"])
def test_capabilities(nvidia: Path, place: str, text: str, seen: list[object]) -> None:
    path = nvidia / "capabilities" / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert list(procfs.capabilities(str(nvidia.parent.parent))) == seen
