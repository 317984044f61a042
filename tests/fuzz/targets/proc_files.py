"""/proc of the driver and of the kernel: whatever it says, a list of sound entries and sentences."""

from __future__ import annotations

import json
import re

from fuzz.oracles import scratch
from gpushim.inventory import ensure, modules, procfs

# The files, in the order in which the parts of an input go into them.
PLACES = (
    *("driver/nvidia/version", "driver/nvidia/params", "driver/nvidia/gpus/0000:01:00.0/information", "devices"),
    *("driver/nvidia/capabilities/mig/config", "driver/nvidia/capabilities/gpu0/mig/gi1/access"),
    *("driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "driver/nvidia-caps/mig-minors", "modules"),
)
BETWEEN = b"\n%%\n"
PROC = scratch()
VERSION = (
    b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: x\n"
)
PARAMS = b"ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
GPU = b"Model: \t\t NVIDIA A100\nIRQ: 1\nGPU UUID: \t GPU-0\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n"
ACCESS = b"DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
MINORS = b"config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
DEVICES = b"Character devices:\n  1 mem\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
PARTS = (VERSION, PARAMS, GPU, DEVICES, ACCESS, ACCESS, ACCESS, MINORS, b"nvidia 56 3 nvidia_uvm, Live 0x0 (POE)\n")


def seeds() -> list[bytes]:
    """Return a whole /proc, one without access files, and an empty one."""
    return [BETWEEN.join(PARTS), BETWEEN.join((*PARTS[:4], b"", b"", b"", *PARTS[7:])), b""]


def one(data: bytes) -> None:
    """Read a /proc by each reader."""
    parts = data.split(BETWEEN)
    for name, text in zip(PLACES, [*parts, *[b""] * len(PLACES)]):
        path = PROC / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    proc = str(PROC)
    notes: list[str] = []
    found = procfs.gpus(proc, notes)
    json.dumps([found, ensure.driver(proc, proc, True), procfs.restricted_params(proc)])
    assert len(found) + len(notes) == 1
    for gpu in found:
        assert 0 <= gpu["minor"] < 1000
        assert gpu["node"] == f"/dev/nvidia{gpu['minor']}"
    assert re.fullmatch(r"|\d+\.\d+(\.\d+)*", procfs.module_version(proc) or "", re.ASCII)
    for path_in_dev in procfs.mig_nodes(proc, 0, 1, 0):
        assert re.fullmatch(r"/dev/nvidia-caps/nvidia-cap\d+", path_in_dev, re.ASCII), path_in_dev
    for minor, mode, _ in procfs.capabilities(proc):
        assert 0 <= minor < 2**20
        assert mode == mode & 0o777
    mode, uid, gid = procfs.device_files(proc) or (0, 0, 0)
    assert mode == mode & 0o777
    assert 0 <= uid < 2**32
    assert 0 <= gid < 2**32
    assert all(0 <= major < 2**32 for major in procfs.majors(proc).values())
    assert modules.loaded(proc) is not None
