"""Build the other hosts of the arm64 machine at their places, and say what a container of each must get.

A program of its own, which aarch64.py starts where those places are in the machine's tree. `expected.json` has nodes
of each device below /dev, what ldconfig finds, and what the inventory says of the GPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fakehost
from fakehost import platforms

PLACE = Path("/srv")
FIRST = {**fakehost.GH200, "pci": "0009:01:00.0", "numa": 0, "minor": 0}
MIG = ("1g.12gb", "1g.12gb")
Told = list[tuple[str, int, str]]  # model, NUMA node, addressing
ALWAYS = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]


def grace(libraries: str) -> None:
    """A machine with two of them; the second is divided."""
    gpus = [FIRST, {**fakehost.GH200, "mig": MIG}]
    host = fakehost.build(str(PLACE / "grace"), gpus, driver="550.54.15", cuda="12.4", libdir=libraries, imex=1)
    platforms.to_grace(host)
    mig = host.gpus[1].mig[1]
    minors = (fakehost.gi_cap(1, mig.gi), fakehost.ci_cap(1, mig.gi, mig.ci))
    caps = [f"nvidia-caps/nvidia-cap{minor}" for minor in minors]
    devices = {"0": [*ALWAYS, "nvidia0"], "1:1": [*ALWAYS, "nvidia1", *caps]}
    told: Told = [(gpu.model, gpu.numa, "ATS") for gpu in host.gpus]
    write(host, devices, ["nvidia-modeset"], f"/{libraries}/libcuda.so.1", told, "neither")


def jetson() -> None:
    """A Jetson, whose containers get what its CSV files name."""
    host = fakehost.build(str(PLACE / "jetson"), 1)  # its libraries go, whatever their place
    platforms.to_tegra(host)
    nodes = sorted(platforms.TEGRA_NODES)
    library = f"{platforms.TEGRA_LIB}/libcuda.so.1"
    told: Told = [("NVIDIA Jetson AGX Orin Developer Kit", -1, "")]
    write(host, {"0": nodes}, [], library, told, "Tegra", "/lib/firmware/ga10b/gpu.bin")


def write(
    host: fakehost.Host,
    devices: dict[str, list[str]],
    cdi: list[str],
    library: str,
    gpus: Told,
    doctor: str,
    file: str = "/usr/bin/nvidia-smi",
) -> None:
    """Leave behind what is expected; `cdi` are nodes of all capabilities, which a CDI device has."""
    expected = {"devices": devices, "cdi": cdi, "library": library, "gpus": gpus, "doctor": doctor, "file": file}
    Path(host.root, "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    grace(sys.argv[1])
    jetson()
