"""Checks of NVIDIA's driver: kernel module, libraries, NVML, persistence mode, the host's library cache.

Out of scope: device nodes (nodes.py).
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from gpushim.doctor import Finding, Host, ask, broken, ok, skipped, some, text, warning
from gpushim.inventory import files, gpus, libraries, modules, nodes, procfs, rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE = 3.0  # seconds beyond those that NVML gets, for Python to start
SLOW = 2.0  # seconds that NVML may take to initialise before somebody should know
PERSISTENCED = "/run/nvidia-persistenced/socket"
NO_DRIVER = "NVIDIA's kernel module is not loaded"


def platform(host: Host) -> Iterator[Finding]:
    """Check what is particular to WSL2 and Tegra."""
    notes: list[str] = []
    kind = host.platform(notes)
    release = text(f"{host.top}/proc/sys/kernel/osrelease").lower()
    if kind == "native" and "microsoft" in release:
        yield broken("this is WSL, and it has no /dev/dxg: WSL 1, or Windows' driver is missing", "wsl --update")
    elif notes:
        yield from (warning(note, "gpushim refresh, once that is fixed") for note in notes)
    elif kind == "native":
        yield ok("this is neither WSL nor Tegra")
    else:
        yield ok(f"this is {'WSL2' if kind == 'wsl' else 'Tegra'}: containers get all of its GPUs or none")


def module(host: Host) -> Iterator[Finding]:
    """Check that the kernel module is loaded."""
    version = procfs.module_version(host.proc)
    there = modules.loaded(host.proc) or ()
    if host.platform([]) != "native":
        yield skipped("this system has no such kernel module")
    elif version:
        yield ok(f"the kernel module {version} is loaded")
    elif version == "":
        yield broken(f"{host.proc}/driver/nvidia/version does not tell a version", "reload the module, or reboot")
    elif not modules.has_gpu(host.sys):
        yield broken(
            f"{NO_DRIVER}, and there is no NVIDIA GPU on the PCI bus",
            "lspci -d 10de: shows what there is; a virtual machine needs one passed through",
        )
    elif "nouveau" in there:
        yield broken(
            f"{NO_DRIVER}, but nouveau is, which holds the GPUs",
            "blacklist nouveau in /etc/modprobe.d, rebuild the initramfs, reboot",
        )
    else:
        yield broken(f"{NO_DRIVER}, though there is a GPU", "modprobe nvidia; if that fails, dmesg tells why")


def more_modules(host: Host) -> Iterator[Finding]:
    """Check that CUDA's kernel module, and that for graphics, are loaded."""
    known = nodes.majors(host.proc)
    there = modules.loaded(host.proc)
    if not host.has_driver():
        yield skipped(NO_DRIVER)
    elif "nvidia-uvm" not in known:
        yield broken("nvidia_uvm is not loaded: CUDA cannot start", "modprobe nvidia_uvm && gpushim refresh")
    elif there is not None and "nvidia_modeset" not in there and "nvidia-modeset" not in known:
        yield warning(
            "nvidia_modeset is not loaded: graphics and display do not work",
            "modprobe nvidia_modeset && gpushim refresh",
        )
    else:
        yield ok("nvidia_uvm and nvidia_modeset are loaded")


def agreement(host: Host) -> Iterator[Finding]:
    """Check that the kernel module and the libraries are of one version."""
    version = procfs.module_version(host.proc)
    root = host.driver["root"]
    if not version:
        yield skipped(NO_DRIVER)
        return
    found = files.versions(root)
    if any(files.library(root, name, version) for name in files.TELLTALES):
        others = [each for each in found if each != version]
        if others:
            yield warning(
                f"libraries of {version}, as the module has it, and also of {some(others)} are below {root}",
                "remove the packages of the other version; containers get the module's",
            )
        lacking = files.lacking(root, version)
        yield from (warning(*sentence.split("; ")) for sentence in lacking)
        if not others and not lacking:
            yield ok(f"module and libraries are {version}")
    elif found:
        yield broken(str(gpus.mismatch(version, found[0])), "reboot, or reload the module")
    else:
        yield broken(
            f"the module {version} is loaded, but there are no libraries of the driver below {root}",
            f"install the driver's libraries, or set root under [driver] in {host.config}",
        )


def nvml(host: Host) -> Iterator[Finding]:
    """Check that NVML answers, and every GPU with it."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    found = asked(host)
    sick = [gpu["problem"] for gpu in found.get("gpus", ()) if gpu["problem"]]
    if found["error"]:
        yield broken(found["error"], "nvidia-smi shows the same; reboot, or see dmesg for Xid messages")
    elif found["source"] != "nvml":
        missing = "nvidia-ml-py" in " ".join(found["notes"])
        fix = "install nvidia-ml-py" if missing else "nvidia-smi tells more; gpushim refresh"
        yield (warning if missing else broken)("; ".join(found["notes"]), fix)
    elif found["seconds"] > SLOW:
        yield warning(
            f"NVML takes {found['seconds']:.1f} s to initialise: so does each refresh",
            "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
        )
    elif not sick:
        yield ok(f"NVML knows {len(found['gpus'])} GPUs and {len(found['mig'])} MIG instances")
    for problem in sick:
        yield broken(problem, "nvidia-smi, and dmesg for Xid messages; a reset or a reboot may bring the GPU back")


def persistence(host: Host) -> Iterator[Finding]:
    """Check that somebody keeps the GPUs initialised."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    socket = rooted.inside(host.driver["root"], PERSISTENCED)
    modes = asked(host).get("persistence", [])
    off = [str(index) for index, mode in enumerate(modes) if mode is False]
    if ask.listens(socket):
        yield ok("nvidia-persistenced runs")
    elif modes and all(modes):
        yield ok("persistence mode is on")
    else:
        dead = f"; {socket} is there, but nobody listens" if os.path.exists(socket) else ""
        which = f" (GPU {some(off)})" if off else ""
        yield warning(
            f"persistence mode is off{which}{dead}: each use of an idle GPU begins with seconds of waiting",
            "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
        )


def cache(host: Host) -> Iterator[Finding]:
    """Check that the host's loader knows the driver's libraries."""
    version, root = procfs.module_version(host.proc), host.driver["root"]
    if not version:
        yield skipped(NO_DRIVER)
        return
    notes: list[str] = []
    data = libraries.read_cache(root, notes)
    loader = libraries.Loader(root, "", data, notes)
    known = [rooted.resolve(root, path) or "" for name in libraries.TELLTALES for path in loader.cached.get(name, ())]
    if notes:
        yield from (warning(note, "ldconfig") for note in notes)
    elif not data:
        yield skipped(f"{rooted.inside(root, libraries.CACHE)} is not there; known directories are searched instead")
    elif any(path.endswith("." + version) for path in known):
        yield ok("the library cache has the driver's libraries")
    else:
        yield warning(f"{rooted.inside(root, libraries.CACHE)} has no libcuda.so of {version}", "ldconfig")


def asked(host: Host) -> dict[str, Any]:
    """Return what NVML says, as listing.py prints it; it is asked once."""
    if "nvml" not in host.answers:
        host.answers["nvml"] = _asked(host)
    answer: dict[str, Any] = host.answers["nvml"]
    return answer


def _asked(host: Host) -> dict[str, Any]:
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "listing.py")
    python = sys.executable or "/usr/bin/python3"
    seconds = host.settings["refresh"]["deadline-seconds"] + GRACE
    version = procfs.module_version(host.proc) or ""
    answer = ask.program([python, "-IB", script, host.driver["root"], host.proc, version], seconds)
    try:
        found: dict[str, Any] = json.loads(answer.out)
    except ValueError:
        late = answer.code is None
        reason = f"NVML has not answered within {seconds:g} s" if late else f"NVML cannot be asked: {answer.last}"
        return {"error": reason}
    return found
