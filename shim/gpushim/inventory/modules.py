"""The driver's kernel modules: load the missing ones, and wait while they change.

A boot without an X server leaves some unloaded. An installer unloads them one after the other, and fails if a process
opens a GPU or loads one meanwhile; it calls ldconfig, which starts an unattended refresh.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING

from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, loader, procfs
from gpushim.paths import rooted, trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushim.ground.model import Snapshot

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
REST = 3.0  # seconds without a change; unloading all modules takes less
LIMIT = 60.0  # seconds; then the host is surveyed although it keeps changing
PAUSE = 0.2
LIVE = "Live"  # state of a module, the fifth word of its line in /proc/modules


def load(root: str, proc: str, waiting: Callable[[str], None]) -> list[str]:
    """Load the missing modules, if this is root of a host with an NVIDIA GPU; returns notes.

    With a driver root other than "/", that root's own modprobe loads its own modules.
    """
    absent = missing(proc)
    if not absent or os.geteuid() != 0 or trust.in_user_namespace() or not has_gpu(sys_dir(root)):
        return []
    program = _modprobe_path()
    for name in absent:
        waiting(f"{program} {name}")
        problem = _modprobe(root, program, name)
        if problem or name in missing(proc):
            return [f"the kernel module {name} is not loaded: {problem or f'{program} says so, but it is not there'}"]
    return []


def sys_dir(root: str) -> str:
    """Return the /sys that shows the GPUs of a driver root, by the same rule as ensure.proc_dir."""
    return root + "/sys" if root != "/" and os.path.isdir(root + "/sys/bus/pci/devices") else "/sys"


def has_gpu(sys: str) -> bool:
    folder = sys + "/bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    devices = (f"{folder}/{name}" for name in names)
    facts = [[procfs.text(f"{device}/{name}") or "" for name in ("vendor", "class")] for device in devices]
    return any(vendor.strip() == VENDOR and category.startswith(DISPLAY) for vendor, category in facts)


def loaded(proc: str) -> dict[str, str] | None:
    """Return the loaded modules, each with its state; None if this kernel cannot load any."""
    text = procfs.text(proc + "/modules")
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: row[4] if len(row) > 4 else LIVE for row in rows if row}


def missing(proc: str) -> list[str]:
    present = loaded(proc)
    absent = [name for name in MODULES if present is not None and name not in present]
    majors = procfs.majors(proc) if absent else {}
    return [name for name in absent if not any(device in majors for device in MODULES[name])]


def _modprobe_path() -> str:
    path = (procfs.text(HELPER) or "").strip()
    return path if path.startswith("/") else USUAL_HELPER


def _modprobe(root: str, program: str, name: str) -> str:
    """Run modprobe; returns the problem, or ""."""
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


def wait(root: str, proc: str) -> None:
    """Wait until the driver's modules and the library caches have been the same for a while.

    Raises:
        GpushimError: after LIMIT, a module is still being loaded or unloaded.
    """
    began = since = time.monotonic()
    last_facts = _facts(root, proc)
    while (clock := time.monotonic()) - since < REST and clock - began < LIMIT:
        time.sleep(PAUSE)
        facts = _facts(root, proc)
        if facts != last_facts or _is_changing(facts[0]):
            last_facts, since = facts, time.monotonic()
    if _is_changing(last_facts[0]):
        raise GpushimError(
            "the driver's kernel module is being loaded or unloaded, for a minute now; run gpushim refresh later",
            INVENTORY,
        )


def untouched(snapshot: Snapshot, proc: str) -> bool:
    """Return whether the driver is as a snapshot has it, though GPUs, MIG instances or their nodes may not be.

    An upgrade takes modules away first, and with them lines of /proc/devices and the nodes in /dev/dri.
    """
    if not snapshot or _is_changing(_module_states(proc)):
        return False
    paths, saved, host = snapshot["inputs"]["nodes"], snapshot["stamp"], ensure.current(snapshot["inputs"])
    facts = zip(paths, saved["nodes"], host["nodes"])
    files = [
        (saved_fact, host_fact) for path, saved_fact, host_fact in facts if "/dev/" not in path or "/dev/dri" in path
    ]
    driver = [
        (saved_fact["boot"], saved_fact["module"], saved_fact["majors"], saved_fact["libraries"])
        for saved_fact in (saved, host)
    ]
    return (
        saved["module"] is not None
        and driver[0] == driver[1]
        and all(saved_fact == host_fact for saved_fact, host_fact in files)
    )


def _facts(root: str, proc: str) -> tuple[dict[str, str], object]:
    caches = {loader.CACHE, rooted.inside(root, loader.CACHE)}
    return _module_states(proc), (procfs.module_version(proc), [ensure.node(path) for path in sorted(caches)])


def _is_changing(states: dict[str, str]) -> bool:
    return any(state != LIVE for state in states.values())


def _module_states(proc: str) -> dict[str, str]:
    return {name: state for name, state in (loaded(proc) or {}).items() if name.startswith("nvidia")}
