"""The simulated GPU host's files: libraries, programs, nodes, proc, and how they are built. Needs root and gcc."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fakehost
from fakehost import Host, build
from unit.gpuhook.sandbox import forked

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build(str(tmp_path / "h"), 3)


def test_sonames_and_links(host: Host) -> None:
    assert os.readlink(f"{host.lib_path}/libcuda.so") == "libcuda.so.1"
    assert os.readlink(f"{host.lib_path}/libcuda.so.1") == "libcuda.so.535.183.01"

    def load() -> None:
        for name in os.listdir(host.lib_path):
            path = f"{host.lib_path}/{name}"
            if os.path.isfile(path):
                ctypes.CDLL(path)

    forked(load)


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


@pytest.mark.parametrize("machine", fakehost.smallelf.MACHINES)
def test_written_libraries_in_the_eyes_of_readelf(tmp_path: Path, machine: str) -> None:
    (tmp_path / "x").write_bytes(fakehost.smallelf.library(machine, "libx.so.1"))
    command = ["readelf", "--wide", "--file-header", "--segments", "--dynamic", str(tmp_path / "x")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin"}
    )
    assert (done.stderr, "Library soname: [libx.so.1]" in done.stdout) == ("", True)
    assert {"x86_64": "X86-64", "aarch64": "AArch64", "i386": "Intel 80386"}[machine] in done.stdout


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


def test_another_compiler_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/aarch64-linux-gnu-gcc")
    with pytest.raises(RuntimeError, match="needs /nowhere/aarch64-linux-gnu-gcc, and it is not installed"):
        fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(tmp_path / "cache"))
