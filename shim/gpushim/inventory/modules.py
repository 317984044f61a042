"""Load the driver's missing kernel modules, as a boot without an X server leaves some unloaded.

Costs one short read when all are loaded. Out of scope: device nodes (make_nodes.py), unloading, and building modules.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

from gpushim.inventory import nodes
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable

# In this order, as the others need the first; each with its possible names in /proc/devices.
MODULES = {
    "nvidia": ("nvidia", "nvidia-frontend", "nvidiactl"),
    "nvidia_uvm": ("nvidia-uvm",),
    "nvidia_modeset": ("nvidia-modeset",),
}
VENDOR, DISPLAY = "0x10de", "0x03"  # PCI: NVIDIA, and the class of display controllers
HELPER, USUAL_HELPER = "/proc/sys/kernel/modprobe", "/sbin/modprobe"
CHROOT = "/usr/sbin/chroot"
SECONDS = 10  # for one module; the driver needs about two with eight GPUs
OUTPUT_LIMIT = 300  # bytes of modprobe's output
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def load(root: str, proc: str, waiting: Callable[[str], None]) -> list[str]:
    """Load what is missing, if this is root of a host with an NVIDIA GPU; returns notes.

    With a driver root other than "/", that root's own modprobe loads its own modules.
    """
    absent = missing(proc)
    if not absent or os.geteuid() != 0 or trust.in_user_namespace() or not has_gpu(sys_dir(root)):
        return []
    program = _program()
    for name in absent:
        waiting(f"{program} {name}")
        problem = _modprobe(root, program, name)
        if problem or name in missing(proc):
            return [f"the kernel module {name} is not loaded: {problem or f'{program} says so, but it is not there'}"]
    return []


def sys_dir(root: str) -> str:
    """Return the /sys that shows the GPUs of a driver root, by the same rule as stamp.proc_dir."""
    return root + "/sys" if root != "/" and os.path.isdir(root + "/sys/bus/pci/devices") else "/sys"


def has_gpu(sys: str) -> bool:
    """Say whether an NVIDIA GPU is plugged in."""
    folder = sys + "/bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    places = (f"{folder}/{name}" for name in names)
    return any(_text(f"{p}/vendor").strip() == VENDOR and _text(f"{p}/class").startswith(DISPLAY) for p in places)


def loaded(proc: str) -> set[str] | None:
    """Return the names of the loaded modules; None if this kernel cannot load any."""
    try:
        with open(proc + "/modules", encoding="ascii", errors="replace") as file:
            return {line.partition(" ")[0] for line in file}
    except OSError:
        return None


def missing(proc: str) -> list[str]:
    """List the modules that `load` would load."""
    there = loaded(proc)
    absent = [name for name in MODULES if there is not None and name not in there]
    majors = nodes.majors(proc) if absent else {}
    return [name for name in absent if not any(device in majors for device in MODULES[name])]


def _program() -> str:
    path = _text(HELPER).strip()
    return path if path.startswith("/") else USUAL_HELPER


def _modprobe(root: str, program: str, name: str) -> str:
    """Run modprobe; returns what went wrong, or ""."""
    command = [program, name] if root == "/" else [CHROOT, root, program, name]
    # Not a pipe: a daemon that an "install" line of modprobe.d starts would keep it open.
    with open(os.memfd_create("modprobe"), "r+b") as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env=ENVIRONMENT
            )
        except OSError as error:
            return f"{command[0]} cannot be started ({error.strerror})"
        try:
            code = child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            _abandon(child)
            return f"{' '.join(command)} takes longer than {SECONDS} s"
        output.seek(0)
        text = " ".join(output.read(OUTPUT_LIMIT).decode("utf-8", "replace").split())
    return f"{' '.join(command)} failed ({text or f'code {code}'})" if code else ""


def _abandon(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # inside the kernel, it ends when the module has loaded
        child.wait(0.2)


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
