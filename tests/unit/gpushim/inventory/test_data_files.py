"""The driver's files that are no libraries. Whole inventories are in test_driver_files_golden.py."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import fakehost
from fakehost import smallelf
from gpushim.ground.model import File
from gpushim.inventory import data_files
from gpushim.inventory.loader import Loader

VERSION = "535.183.01"


def make(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def listen(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/{path.name}")
    os.close(fd)


def paths(entries: list[File]) -> list[str]:
    return [entry["path"] for entry in entries]


def test_first_program_of_a_name(tmp_path: Path) -> None:
    make(tmp_path / "usr/local/bin/nvidia-smi")
    make(tmp_path / "usr/sbin/nvidia-smi")
    assert data_files.binaries(str(tmp_path), "utility", VERSION, []) == [
        {"path": "/usr/sbin/nvidia-smi", "kind": "binary"}
    ]


@pytest.mark.parametrize("name", data_files.BINARIES["utility"])
def test_programs_of_utility(tmp_path: Path, name: str) -> None:
    make(tmp_path / "usr/bin" / name)
    assert paths(data_files.binaries(str(tmp_path), "utility", VERSION, [])) == [f"/usr/bin/{name}"]
    assert data_files.binaries(str(tmp_path), "compute", VERSION, []) == []


def test_program_behind_a_link_keeps_its_name(tmp_path: Path) -> None:
    make(tmp_path / "usr/bin/smi-real")
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("smi-real")
    assert data_files.binaries(str(tmp_path), "utility", VERSION, []) == [
        {"path": "/usr/bin/nvidia-smi", "kind": "binary"}
    ]


def test_program_behind_a_link_that_is_meant_inside_the_root(tmp_path: Path) -> None:
    make(tmp_path / "opt/smi")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/opt/smi")
    expected = {"path": "/opt/smi", "kind": "binary", "links": ["/opt/smi::/usr/bin/nvidia-smi"]}
    assert data_files.binaries(str(tmp_path), "utility", VERSION, []) == [expected]


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("compute", "OpenCL/vendors/nvidia.icd"),
        ("graphics", "glvnd/egl_vendor.d/10_nvidia.json"),
        ("graphics", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
        ("graphics", "vulkan/icd.d/nvidia_icd.aarch64.json"),
        ("graphics", "nvidia/nvoptix.bin"),
        ("display", "X11/xorg.conf.d/10-nvidia.conf"),
    ],
)
def test_every_hit_at_its_own_path(tmp_path: Path, capability: str, name: str) -> None:
    for folder in ("usr/share", "usr/local/share", "etc"):
        make(tmp_path / folder / name)
    found = data_files.configs(str(tmp_path), capability, "aarch64", VERSION)
    assert found == [{"path": f"/{at}/{name}", "kind": "data"} for at in ("etc", "usr/local/share", "usr/share")]
    others = {"compute", "graphics", "display"} - {capability}
    assert not [entry for other in others for entry in data_files.configs(str(tmp_path), other, "aarch64", VERSION)]


def test_configuration_of_another_machine_stays(tmp_path: Path) -> None:
    make(tmp_path / "usr/share/vulkan/icd.d/nvidia_icd.i686.json")
    assert data_files.configs(str(tmp_path), "graphics", "x86_64", VERSION) == []
    assert paths(data_files.configs(str(tmp_path), "graphics32", "i686", VERSION)) == [
        "/usr/share/vulkan/icd.d/nvidia_icd.i686.json"
    ]


@pytest.mark.parametrize("obstacle", ["fifo", "directory", "empty", "loop", "outside"])
def test_configuration_that_is_no_file(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "root/etc/OpenCL/vendors/nvidia.icd"
    path.parent.mkdir(parents=True)
    make(tmp_path / "secret")
    if obstacle == "fifo":
        os.mkfifo(path)
    elif obstacle == "directory":
        path.mkdir()
    elif obstacle == "empty":
        path.write_bytes(b"")
    else:
        path.symlink_to("nvidia.icd" if obstacle == "loop" else "../../../../secret")
    assert data_files.configs(str(tmp_path / "root"), "compute", "x86_64", VERSION) == []


def test_one_file_under_two_names_is_mounted_once(tmp_path: Path) -> None:
    make(tmp_path / "usr/share/OpenCL/vendors/nvidia.icd")
    (tmp_path / "etc/OpenCL/vendors").mkdir(parents=True)
    (tmp_path / "etc/OpenCL/vendors/nvidia.icd").symlink_to("/usr/share/OpenCL/vendors/nvidia.icd")
    (entry,) = data_files.configs(str(tmp_path), "compute", "x86_64", VERSION)
    assert entry["links"] == ["/usr/share/OpenCL/vendors/nvidia.icd::/etc/OpenCL/vendors/nvidia.icd"]


@pytest.mark.parametrize(
    "folder",
    ["usr/lib/xorg/modules", "usr/lib64/xorg/modules", "usr/lib64/xorg/modules/updates", "usr/X11R6/lib/modules"],
)
def test_modules_of_the_x_server(tmp_path: Path, folder: str) -> None:
    make(tmp_path / folder / "drivers/nvidia_drv.so", smallelf.library("x86_64", ""))
    name = f"libglxserver_nvidia.so.{VERSION}"
    make(tmp_path / folder / "extensions" / name, smallelf.library("x86_64", name))
    make(tmp_path / folder / "extensions/libglxserver_nvidia.so.1.2", smallelf.library("x86_64", name))
    driver, extension = data_files.xorg(Loader(str(tmp_path), "x86_64", b"", []), VERSION, [])
    assert driver == {"path": f"/{folder}/drivers/nvidia_drv.so", "kind": "data"}
    assert extension["path"] == f"/{folder}/extensions/{name}"
    assert extension["links"] == [f"{name}::/{folder}/extensions/libglxserver_nvidia.so"]


def test_module_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    make(tmp_path / "usr/lib/xorg/modules/drivers/nvidia_drv.so", smallelf.library("i386", ""))
    make(tmp_path / "usr/lib64/nvidia/xorg/nvidia_drv.so", smallelf.library("x86_64", ""))
    found = data_files.xorg(Loader(str(tmp_path), "x86_64", b"", []), VERSION, [])
    assert paths(found) == ["/usr/lib64/nvidia/xorg/nvidia_drv.so"]


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ("{root}/lib/firmware", "lib/firmware"),
        ("{root}/opt/fw/", "opt/fw"),
        ("/opt/fw", "opt/fw"),
        ("relative", "lib/firmware"),
        ("", "lib/firmware"),
    ],
)
def test_firmware_where_the_kernel_was_told(tmp_path: Path, told: str, folder: str) -> None:
    for place in ("lib/firmware", "opt/fw"):
        make(tmp_path / place / f"nvidia/{VERSION}/gsp_ga10x.bin")
    told = told.format(root=tmp_path)
    make(tmp_path / "sys/module/firmware_class/parameters/path", f"{told}\n".encode())
    assert paths(data_files.firmware(str(tmp_path), VERSION)) == [f"/{folder}/nvidia/{VERSION}/gsp_ga10x.bin"]


def test_firmware_path_that_is_a_fifo(tmp_path: Path) -> None:
    make(tmp_path / f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    (tmp_path / "sys/module/firmware_class/parameters").mkdir(parents=True)
    os.mkfifo(tmp_path / "sys/module/firmware_class/parameters/path")
    assert len(data_files.firmware(str(tmp_path), VERSION)) == 1


def test_firmware_of_other_names_and_versions_stays(tmp_path: Path) -> None:
    for name in (f"{VERSION}/other.bin", f"{VERSION}/gsp.txt", "1.2/gsp_ga10x.bin"):
        make(tmp_path / "lib/firmware/nvidia" / name)
    assert data_files.firmware(str(tmp_path), VERSION) == []


PIPES = "/run/nvidia-mps"


@pytest.mark.parametrize("pipe", ["socket", "fifo"])
def test_mps(tmp_path: Path, pipe: str) -> None:
    root = fakehost.build(str(tmp_path), 1, nodes=False, mps=True).root
    if pipe == "fifo":
        (tmp_path / "run/nvidia-mps/control").unlink()
        os.mkfifo(tmp_path / "run/nvidia-mps/control")
    assert data_files.mps(root, PIPES, VERSION, []) == [
        {"path": PIPES, "kind": "directory"},
        {"path": "/usr/bin/nvidia-cuda-mps-control", "kind": "binary"},
        {"path": "/usr/bin/nvidia-cuda-mps-server", "kind": "binary"},
    ]
    assert data_files.mps(root, "", VERSION, []) == []


@pytest.mark.parametrize("obstacle", ["missing", "no control", "control is a file", "control is a link"])
def test_no_mps_daemon(tmp_path: Path, obstacle: str) -> None:
    pipes = tmp_path / "run/nvidia-mps"
    if obstacle != "missing":
        pipes.mkdir(parents=True)
    if obstacle == "control is a file":
        make(pipes / "control")
    elif obstacle == "control is a link":
        listen(tmp_path / "etc/control")
        (pipes / "control").symlink_to("../../etc/control")
    assert data_files.mps(str(tmp_path), PIPES, VERSION, []) == []
    said = data_files.mps_problem(str(tmp_path), PIPES)
    assert f"no control daemon has its pipes in {PIPES}; start it with CUDA_MPS_PIPE_DIRECTORY={PIPES};" in said
    assert said.endswith(f"below the driver root {tmp_path}")


# How a directory can be others', the directory that is changed, and what is said of it.
OTHERS: dict[str, tuple[str, str]] = {
    "a user's": ("run/nvidia-mps", "/run/nvidia-mps belongs to user 1000, not root"),
    "below a user's": ("run", "/run belongs to user 1000, not root"),
    "everybody's": ("run/nvidia-mps", "users other than root can write to /run/nvidia-mps"),
    "a group's": ("run/nvidia-mps", "users other than root can write to /run/nvidia-mps"),
    "below everybody's": ("run", "users other than root can write to /run"),
    "sticky": ("run", "users other than root can write to /run"),
    "a link": ("run/nvidia-mps", "/run/nvidia-mps is no directory, or a link to one"),
    "below a link": ("run", "/run is no directory, or a link to one"),
}
MODES = {"everybody's": 0o777, "a group's": 0o775, "below everybody's": 0o777, "sticky": 0o1777}


@pytest.mark.parametrize("name", OTHERS)
def test_mps_of_somebody_else(tmp_path: Path, name: str) -> None:
    listen(tmp_path / "run/nvidia-mps/control")
    assert data_files.mps(str(tmp_path), PIPES, VERSION, [])
    changed, reason = tmp_path / OTHERS[name][0], OTHERS[name][1]
    if name in MODES:
        changed.chmod(MODES[name])
    elif "link" in name:
        changed.rename(tmp_path / "elsewhere")
        changed.symlink_to(tmp_path / "elsewhere")
    else:
        os.chown(changed, 1000, 1000)
    assert data_files.mps(str(tmp_path), PIPES, VERSION, []) == []
    said = data_files.mps_problem(str(tmp_path), PIPES)
    assert said.startswith(
        f"no container takes part in MPS: {reason}; start the daemon with CUDA_MPS_PIPE_DIRECTORY="
    )


@pytest.mark.parametrize("pipes", ["/", "/run/..", "/run/.", "//run/mps", "/run//mps", "/run/../mps"])
def test_odd_mps_directories(tmp_path: Path, pipes: str) -> None:
    for name in ("control", "run/control", "run/mps/control", "mps/control"):
        listen(tmp_path / name)
    assert data_files.mps(str(tmp_path), pipes, VERSION, []) == []
    assert "is not written plainly" in data_files.mps_problem(str(tmp_path), pipes)


def test_gds(tmp_path: Path) -> None:
    make(tmp_path / "etc/cufile.json")
    (tmp_path / "run/udev/data").mkdir(parents=True)
    listen(tmp_path / "run/udev/control")
    expected = [{"path": "/etc/cufile.json", "kind": "data"}, {"path": "/run/udev/data", "kind": "directory"}]
    assert data_files.gds(str(tmp_path)) == expected


@pytest.mark.parametrize("trouble", ["a link", "a user's"])
def test_no_database_of_udev_where_others_can_put_something_else(tmp_path: Path, trouble: str) -> None:
    data = tmp_path / "run/udev/data"
    data.mkdir(parents=True)
    if trouble == "a link":
        data.rename(tmp_path / "elsewhere")
        data.symlink_to(tmp_path / "elsewhere")
    else:
        os.chown(data.parent, 1000, 1000)
    assert data_files.gds(str(tmp_path)) == []


@pytest.mark.parametrize(("inside", "given"), [("550.54.14", True), ("470.256.02", False), ("", True)])
def test_a_program_of_another_driver_is_left_out(tmp_path: Path, inside: str, given: bool) -> None:
    make(tmp_path / "usr/bin/nvidia-smi", b"\x7fELF\0" + inside.encode() + b"\0libnvidia-ml.so\0")
    notes: list[str] = []
    assert bool(data_files.binaries(str(tmp_path), "utility", "550.54.14", notes)) is given
    assert bool(notes) is not given
    assert all("it is of driver 470.256.02, and the kernel module is 550.54.14" in note for note in notes)


def test_one_directory_with_all_of_a_driver(tmp_path: Path) -> None:
    """As Google's installer for its Container-Optimized OS makes it; programs look for these files elsewhere."""
    icd, firmware = "vulkan/icd.d/nvidia_icd.json", f"firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    for path in (icd, firmware):
        make(tmp_path / path)
    root = str(tmp_path)
    assert data_files.configs(root, "graphics", "x86_64", VERSION) == [
        {"path": f"/{icd}", "kind": "data", "links": [f"/{icd}::/etc/{icd}"]}
    ]
    assert data_files.firmware(root, VERSION) == [
        {"path": f"/{firmware}", "kind": "firmware", "links": [f"/{firmware}::/lib/{firmware}"]}
    ]
    assert {f"/{icd}", f"/firmware/nvidia/{VERSION}/"} <= data_files.list_watched(root, VERSION, set())
