"""This machine's side: the driver, the GPUs as nvidia-smi lists them, a low-level runtime that works here."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Optional

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CARRIED = os.path.join(TOP, ".gpu-carry", "runc")
# Roots that hold a driver alone, with the machine's own root last; the library's place in one.
ROOTS = ("/usr/local/nvidia", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/opt/nvidia/driver", "/")
PLACES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib")
SECONDS = 120.0  # for one command
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotHereError(Exception):
    """There is nothing to try it on; the sentence says what is missing."""


@dataclass
class Driver:
    """A driver: its root, the directory whose dev/ has the nodes, its libraries' directory, its nvidia-smi."""

    root: str
    dev_root: str
    libraries: str
    smi: str
    gpus: list[tuple[str, list[str]]] = field(default_factory=list)  # UUID, lines of nvidia-smi -L without index

    def listed(self) -> str:
        """Ask nvidia-smi on this machine."""
        return run([self.smi, "-L"], env={"PATH": PATH, "LD_LIBRARY_PATH": self.libraries})


def run(command: list[str], env: Optional[dict[str, str]] = None) -> str:
    """Run a command; returns what it prints, and raises RuntimeError with what it says if it fails."""
    with tempfile.TemporaryFile() as said:  # not a pipe, which a created container would keep open
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env, timeout=SECONDS, check=False
        ).returncode
        said.seek(0)
        text = said.read().decode(errors="replace")
    if status:
        raise RuntimeError(f"{' '.join(command)}: status {status}: {text.strip()}")
    return text


def gpus(listed: str) -> list[tuple[str, list[str]]]:
    """Take the GPUs out of what `nvidia-smi -L` prints, MIG devices with theirs; indices are left out."""
    found: list[tuple[str, list[str]]] = []
    for line in listed.splitlines():
        top = re.match(r"GPU \d+: (.*\(UUID: (GPU-[0-9a-f-]+)\))", line)
        if top:
            found.append((top[2], [top[1]]))
        elif found and line.strip():
            found[-1][1].append(line.strip())
    return found


def driver(root: str, dev_root: str) -> Driver:
    """Find the driver.

    Args:
        root: its root, "" to look in the usual ones.
        dev_root: of its nodes, "" for the root itself if it has some, else the machine's own.

    Raises:
        NotHereError: there is none, or no GPU.
    """
    for top in [root] if root else ROOTS:
        for place in PLACES:
            libraries = os.path.join(top, place)
            if glob.glob(f"{libraries}/libnvidia-ml.so.[0-9]*"):
                nodes = dev_root or (top if os.path.exists(f"{top}/dev/nvidiactl") else "/")
                return _looked_at(top, nodes, libraries)
    raise NotHereError(
        f"there is no libnvidia-ml.so below {root or ', '.join(ROOTS)}: this machine has no NVIDIA driver, or "
        "--driver-root must say where"
    )


def _looked_at(top: str, nodes: str, libraries: str) -> Driver:
    places = [os.path.join(top, folder, "nvidia-smi") for folder in ("usr/bin", "bin")]
    smi = [path for path in places if os.path.exists(path)]
    if not smi:
        raise NotHereError(f"the driver below {top} has no nvidia-smi, which the suite compares with")
    found = Driver(top, nodes, libraries, smi[0])
    node = os.path.join(nodes, "dev/nvidiactl")
    if not os.path.exists(node):
        raise NotHereError(f"there is no {node}: this machine has no NVIDIA GPU, or its driver is not loaded")
    try:
        found.gpus = gpus(found.listed())
    except RuntimeError as error:
        raise NotHereError(f"nvidia-smi finds no GPU: {error}") from None
    if not found.gpus:
        raise NotHereError("nvidia-smi lists no GPU")
    return found


def runc(given: str) -> str:
    """Find runc: the one given, the installed one, or the carried one.

    Raises:
        NotHereError: there is none, or it does not start.
    """
    installed = [f"{folder}/runc" for folder in PATH.split(":")]
    for path in [given] if given else [*installed, CARRIED]:
        if os.access(path, os.X_OK):
            try:
                run([path, "--version"])
            except RuntimeError as error:
                here = os.path.dirname(path)
                raise NotHereError(f"{error}; if a library is missing: cp {here}/lib*.so* /usr/lib") from None
            return path
    raise NotHereError("there is no runc: install it, or run tests/gpu/carry where it is and bring .gpu-carry/ along")


def described() -> str:
    """Return what kind of machine this is, for the report."""
    with open("/proc/self/mountinfo") as file:
        kinds = sorted({line.split(" - ")[1].split()[0] for line in file if " - cgroup" in line})
    processor = os.cpu_count()
    layout = {"cgroup": "v1", "cgroup2": "v2", "cgroup cgroup2": "hybrid"}.get(" ".join(kinds), "none")
    return f"kernel {os.uname().release}, {processor} processors, cgroups {layout}, Python {sys.version.split()[0]}"
