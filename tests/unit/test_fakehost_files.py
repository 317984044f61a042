"""The simulated GPU host's files: libraries, programs, nodes, proc, and how they are built. Needs root and gcc."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fakehost
from fakehost import Host, build
from fakehost.client import ask
from gpushim.paths import rooted

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build(str(tmp_path / "h"), 3)


def test_loader_cache_names_paths_inside_the_root(host: Host) -> None:
    command = ["/sbin/ldconfig", "-p", "-C", f"{host.root}/etc/ld.so.cache"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)$", listed, re.M))
    assert found["libcuda.so.1"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert found["libnvidia-nvvm.so.4"] == "/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4"
    assert "libnvidia-gpucomp.so.535.183.01" in found
    assert {"libnvidia-ml.so.1", "libnvidia-ml.so", "libGLX_nvidia.so.0", "libnvcuvid.so.1"} < set(found)


def test_sonames_and_links(host: Host) -> None:
    assert os.readlink(f"{host.lib_path}/libcuda.so") == "libcuda.so.1"
    assert os.readlink(f"{host.lib_path}/libcuda.so.1") == "libcuda.so.535.183.01"
    for name in os.listdir(host.lib_path):
        path = f"{host.lib_path}/{name}"
        if os.path.isfile(path):
            ctypes.CDLL(path)


def test_libcuda_counts_what_it_may_open(host: Host) -> None:
    code = (
        "import ctypes, sys; cuda = ctypes.CDLL(sys.argv[1]); count, version = ctypes.c_int(), ctypes.c_int()\n"
        "print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value,"
        " cuda.cuDriverGetVersion(ctypes.byref(version)), version.value)"
    )

    def run() -> str:
        command = [sys.executable, "-c", code, f"{host.lib_path}/libcuda.so.1"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    host.remove_node("nvidia1")
    assert run() == "0 0 2 0 12020"
    host.remove_node("nvidia-uvm")
    assert run() == "999 3 0 0 12020"


def test_nvidia_smi_lists_gpus_and_mig_devices(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 2, mig={0: ["1g.5gb"]})
    smi = [f"{made.root}/usr/bin/nvidia-smi", "-L"]
    done = subprocess.run(smi, capture_output=True, text=True, env={"LD_LIBRARY_PATH": made.lib_path}, check=True)
    assert done.stdout == (
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {made.gpus[0].uuid})\n"
        f"  MIG 1g.5gb      Device  0: (UUID: {made.gpus[0].mig[0].uuid})\n"
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {made.gpus[1].uuid})\n"
    )


def test_proc_agrees_with_the_nodes(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 2, mig=True, caps_major=240, imex=2)
    proc = Path(made.root, "proc")
    for gpu in made.gpus:
        text = (proc / f"driver/nvidia/gpus/{gpu.pci}/information").read_text()
        assert re.search(r"^Device Minor: \t (\d+)$", text, re.M)[1] == str(gpu.minor)  # type: ignore[index]
        assert os.stat(made.node(f"nvidia{gpu.minor}")).st_rdev == os.makedev(195, gpu.minor)
    minors = dict(line.split() for line in (proc / "driver/nvidia-caps/mig-minors").read_text().splitlines())
    assert (minors["config"], minors["gpu0/gi0/access"], len(minors)) == ("1", "3", 2 + 32 * 15 * 9)
    for access in (proc / "driver/nvidia/capabilities").glob("gpu1/mig/**/access"):
        name = str(access.relative_to(proc / "driver/nvidia/capabilities")).replace("/mig", "")
        assert access.read_text().startswith(f"DeviceFileMinor: {minors[name]}\n")
        assert os.stat(made.node(f"nvidia-caps/nvidia-cap{minors[name]}")).st_rdev == os.makedev(
            240, int(minors[name])
        )
    assert "240 nvidia-caps\n" in (proc / "devices").read_text()
    assert len(os.listdir(made.node("nvidia-caps-imex-channels"))) == 2


def test_separate_device_root(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 2, dev_root=str(tmp_path / "d"))
    assert os.listdir(f"{made.root}/dev") == []
    assert len(ask(made)["gpus"]) == 2
    os.unlink(tmp_path / "d/dev/nvidia0")
    assert len(ask(made)["gpus"]) == 1


def test_host_without_nodes(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 2, nodes=False)
    assert os.listdir(f"{made.root}/dev") == []
    assert ask(made)["error"] == 9


def test_second_build_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = str(tmp_path / "cache")
    build(str(tmp_path / "a"), 1, compile_cache=cache)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert len(ask(build(str(tmp_path / "b"), 8, compile_cache=cache))["gpus"]) == 8
    with pytest.raises(RuntimeError, match="needs gcc"):
        build(str(tmp_path / "c"), 1, compile_cache=str(tmp_path / "empty"))


def test_two_driver_versions_side_by_side(tmp_path: Path) -> None:
    build(str(tmp_path / "h"), 1)
    made = build(str(tmp_path / "h"), 1, driver="550.54.14", cuda="12.4")
    assert os.path.exists(f"{made.lib_path}/libcuda.so.535.183.01")
    assert os.readlink(f"{made.lib_path}/libcuda.so.1") == "libcuda.so.550.54.14"
    assert ask(made)["driver"] == "550.54.14"


@pytest.mark.parametrize("layout", fakehost.layouts.LIBDIRS)
def test_nvml_of_every_layout(tmp_path: Path, layout: str) -> None:
    made = build(str(tmp_path / "h"), 2, layout=layout)
    assert len(ask(made)["gpus"]) == 2
    assert os.path.exists(f"{made.root}/etc/ld.so.cache") == (layout in ("debian", "rhel"))


@pytest.mark.parametrize(("layout", "folder"), [("debian", "usr/lib/i386-linux-gnu"), ("rhel", "usr/lib")])
def test_32_bit_libraries_in_the_loader_cache(tmp_path: Path, layout: str, folder: str) -> None:
    made = build(str(tmp_path / "h"), 1, layout=layout)
    command = ["/sbin/ldconfig", "-p", "-C", f"{made.root}/etc/ld.so.cache"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"^\tlibcuda\.so\.1 \((.*)\) => (\S+)$", listed, re.M)
    assert ("ELF", f"/{folder}/libcuda.so.1") in paths or ("libc6", f"/{folder}/libcuda.so.1") in paths
    assert ("libc6,x86-64", f"/{made.libdir}/libcuda.so.1") in paths


@pytest.mark.parametrize("machine", fakehost.smallelf.MACHINES)
def test_written_libraries_in_the_eyes_of_readelf(tmp_path: Path, machine: str) -> None:
    (tmp_path / "x").write_bytes(fakehost.smallelf.library(machine, "libx.so.1"))
    command = ["readelf", "--wide", "--file-header", "--segments", "--dynamic", str(tmp_path / "x")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin"}
    )
    assert (done.stderr, "Library soname: [libx.so.1]" in done.stdout) == ("", True)
    assert {"x86_64": "X86-64", "aarch64": "AArch64", "i386": "Intel 80386"}[machine] in done.stdout


def test_links_of_the_store(tmp_path: Path) -> None:
    made = build(str(tmp_path / "h"), 1, layout="nixos")
    for path in ("run/opengl-driver/lib/libcuda.so.1", "run/opengl-driver/share/nvidia/nvoptix.bin"):
        assert (rooted.resolve(made.root, f"/{path}") or "").startswith("/nix/store/q8xk3v7m-nvidia-x11-")
    assert not os.path.exists(f"{made.root}/usr/bin/nvidia-smi")
    assert rooted.resolve(made.root, "/run/current-system/sw/bin/nvidia-smi")


def test_what_only_complete_hosts_have(tmp_path: Path) -> None:
    plain = build(str(tmp_path / "plain"), 1, nodes=False)
    complete = build(str(tmp_path / "complete"), 1, nodes=False, complete=True)

    def files(root: str) -> set[str]:
        return {os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names}

    assert files(complete.root) - files(plain.root) == {
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/bin/nvidia-imex",
        "usr/bin/nvidia-imex-ctl",
        "usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4",
    }


def test_mps_on_request(tmp_path: Path) -> None:
    assert not os.path.exists(f"{build(str(tmp_path / 'a'), 1, nodes=False).root}/run/nvidia-mps")
    made = build(str(tmp_path / "b"), 1, nodes=False, mps=True)
    assert stat.S_ISSOCK(os.lstat(f"{made.root}/run/nvidia-mps/control").st_mode)


def test_command_line_with_the_system_python(tmp_path: Path) -> None:
    command = ["/usr/bin/python3", "-I", str(HERE.parent / "fakehost"), "--root", str(tmp_path / "h"), "--gpus", "2"]
    done = subprocess.run([*command, "--mig"], capture_output=True, text=True, cwd="/", check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["GPU", "MIG", "MIG", "MIG", "GPU"]
    assert os.path.exists(tmp_path / "h/run/nvidia-persistenced/socket")
    refused = subprocess.run([*command, "--gpus", "65"], capture_output=True, text=True, cwd="/", check=False)
    assert (refused.returncode, refused.stderr) == (1, "fakehost: at most 64 GPUs\n")


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([{"minor": 1}, {"minor": 1}], "same minor"),
        ([{"uuid": "GPU-a"}, {"uuid": "GPU-a"}], "same uuid"),
        ([{"pci": "0000:20:00.0"}, {"pci": "0000:10:00.0"}], "PCI order"),
        (65, "at most 64"),
    ],
)
def test_impossible_hosts_are_refused(tmp_path: Path, gpus: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(str(tmp_path / "h"), gpus)


def test_root_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="not in /"):
        build("/../")
