"""Checks of NVIDIA's driver: kernel module, libraries, NVML, persistence mode, the host's library cache."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from gpushim.doctor import REFRESH, Finding, Host, broken, ok, skipped, some, text, warning
from gpushim.engines.processes import ask
from gpushim.inventory import driver_files, gpus, modules, platforms, procfs
from gpushim.inventory.data_files import PERSISTENCED
from gpushim.inventory.loader import CACHE, TELLTALES, Loader, read_cache
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE = 3.0  # seconds beyond those that NVML gets, for Python to start
SLOW = 2.0  # seconds that NVML may take to initialise without a warning
NO_DRIVER = "NVIDIA's kernel module is not loaded"
DIRECTORIES = "etc/ld.so.conf.d/nvidia-driver.conf"


def platform(host: Host) -> Iterator[Finding]:
    """Check the files and nodes of WSL2 and Tegra."""
    notes: list[str] = []
    kind, nodes = host.platform(notes), host.platform_nodes()
    absent = [note for note in notes if platforms.NOTHING in note]  # as it may be: one list serves many boards
    notes = [note for note in notes if note not in absent]
    release = text(f"{host.top}/proc/sys/kernel/osrelease").lower()
    if kind == "native" and "microsoft" in release:
        yield broken(
            "this is WSL, and it has no /dev/dxg: WSL 1, or Windows' driver is missing",
            "in Windows, install NVIDIA's driver, `wsl --update`, and `wsl --set-version` 2 for this distribution",
        )
    elif kind == "tegra" and (problem := platforms.tegra_problem(nodes)):
        evidence, _, fix = problem.partition("; ")
        yield broken("; ".join([evidence, *absent]), fix)
    elif notes:
        yield from (warning(note, f"put there what is missing; then {REFRESH}") for note in notes)
    elif kind == "native":
        yield ok("this is neither WSL nor Tegra")
    else:
        name = "WSL2" if kind == "wsl" else "Tegra"
        yield ok("; ".join([f"this is {name}: containers get all of its GPUs or none", *absent]))


def module(host: Host) -> Iterator[Finding]:
    """Check that the kernel module is loaded."""
    version = procfs.module_version(host.proc)
    loaded = modules.loaded(host.proc) or ()
    if host.platform([]) != "native":
        yield skipped("this system has no such kernel module")
    elif version:
        yield ok(f"the kernel module {version} is loaded")
    elif version == "":
        yield broken(f"{host.proc}/driver/nvidia/version names no version", "reboot")
    elif not modules.has_gpu(host.sys):
        yield broken(
            f"{NO_DRIVER}, and there is no NVIDIA GPU on the PCI bus",
            f"put a GPU into this machine (`lspci -d 10de:` shows those that it has); then {REFRESH}",
        )
    elif "nouveau" in loaded:
        yield broken(
            f"{NO_DRIVER}, but nouveau is, which holds the GPUs",
            "blacklist nouveau in /etc/modprobe.d, rebuild the initramfs, and reboot",
        )
    else:
        yield broken(
            f"{NO_DRIVER}, though there is a GPU (dmesg may say why it is not loaded)", _load_fix(host, "nvidia")
        )


def more_modules(host: Host) -> Iterator[Finding]:
    """Check that CUDA's kernel module, and that for graphics, are loaded."""
    majors = procfs.majors(host.proc)
    loaded = modules.loaded(host.proc)
    if not host.has_driver():
        yield skipped(NO_DRIVER)
    elif "nvidia-uvm" not in majors:
        yield broken("nvidia_uvm is not loaded: CUDA cannot start", _load_fix(host, "nvidia_uvm"))
    elif loaded is not None and "nvidia_modeset" not in loaded and "nvidia-modeset" not in majors:
        yield warning(
            "nvidia_modeset is not loaded: graphics and display do not work", _load_fix(host, "nvidia_modeset")
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
    versions = driver_files.versions(root)
    if any(driver_files.library(root, name, version) for name in TELLTALES):
        other_versions = [installed for installed in versions if installed != version]
        if other_versions:
            yield warning(
                f"libraries of {version}, as the module has it, and also of {some(other_versions)} are below {root}",
                "remove the packages of the other version; containers get the module's",
            )
        lacking = driver_files.lacking(root, version)
        for sentence in lacking:
            evidence, _, fix = sentence.partition("; ")
            yield broken(evidence, f"{fix}; then {REFRESH}")
        if not other_versions and not lacking:
            yield ok(f"module and libraries are {version}")
    elif versions:
        yield broken(
            str(gpus.mismatch(version, versions[0])), "reboot", (("library-cache", "ldconfig"), ("", REFRESH))
        )
    else:
        yield broken(
            f"the module {version} is loaded, but there are no libraries of the driver below {root}",
            f"install those of {version}, or set root under [driver] in {shlex.quote(host.config)}; then {REFRESH}",
        )


def nvml(host: Host) -> Iterator[Finding]:
    """Check that NVML answers, and every GPU with it."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    listing = asked(host)
    sick = [(gpu["uuid"] or gpu["pci"], gpu["problem"]) for gpu in listing.get("gpus", ()) if gpu["problem"]]
    if listing.get("late"):
        yield broken(
            listing["error"],
            f"if `nvidia-smi` ends after a while, the GPUs are only slow: {_persistence_fix(host)}; if it does not, "
            f"reboot; then {REFRESH}",
        )
    elif listing["error"]:
        yield broken(listing["error"], f"reboot (look for Xid messages in dmesg); then {REFRESH}")
    elif listing["source"] != "nvml":
        missing = "nvidia-ml-py" in " ".join(listing["notes"])
        fix = host.install("nvidia-ml-py") if missing else "make `nvidia-smi` work"
        yield (warning if missing else broken)("; ".join(listing["notes"]), f"{fix}; then {REFRESH}")
    elif listing["seconds"] > SLOW:
        yield warning(
            f"NVML takes {listing['seconds']:.1f} s to initialise: so does each refresh", _persistence_fix(host)
        )
    elif not sick:
        yield ok(f"NVML knows {len(listing['gpus'])} GPUs and {len(listing['mig'])} MIG instances")
    for name, problem in sick:  # nvidia-smi may have other indices
        reset = f"`nvidia-smi --gpu-reset -i {name}` or a reboot"
        yield broken(problem, f"{reset} may bring it back (look for Xid messages in dmesg); then {REFRESH}")


def fabric(host: Host) -> Iterator[Finding]:
    """Check that the GPUs' NVLink fabric is ready."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    waiting = [gpu for gpu in asked(host).get("gpus", ()) if gpu["fabric_problem"]]
    for gpu in waiting:
        yield broken(
            f"the NVLink fabric of GPU {gpu['index']} ({gpu['uuid']}) is not ready, so CUDA fails there with error "
            f"802: {gpu['fabric_problem']}",
            f"systemctl restart nvidia-fabricmanager; then {REFRESH}",
        )
    if not waiting:
        yield ok("no GPU waits for its NVLink fabric")


def persistence(host: Host) -> Iterator[Finding]:
    """Check that the GPUs are kept initialised."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    socket = rooted.inside(host.driver["root"], PERSISTENCED)
    modes = asked(host).get("persistence", [])
    off = [str(gpu["index"]) for gpu, mode in zip(asked(host).get("gpus", ()), modes) if mode is False]
    if ask.listens(socket):
        yield ok("nvidia-persistenced runs")
    elif modes and all(modes):
        yield ok("persistence mode is on")
    else:
        dead = f"; {socket} is there, but nobody listens" if os.path.exists(socket) else ""
        label = f" (GPU {some(off)})" if off else ""
        yield warning(
            f"persistence mode is off{label}{dead}: each use of an idle GPU begins with seconds of waiting",
            _persistence_fix(host),
        )


def cache(host: Host) -> Iterator[Finding]:
    """Check that the host's loader knows the driver's libraries."""
    version, root = procfs.module_version(host.proc), host.driver["root"]
    if not version:
        yield skipped(NO_DRIVER)
        return
    notes: list[str] = []
    data = read_cache(root, notes)
    loader = Loader(root, "", data, notes)
    paths = [rooted.resolve(root, path) or "" for name in TELLTALES for path in loader.cached.get(name, ())]
    if notes:
        yield from (warning(note, _cache_fix(host, "")) for note in notes)
    elif not data:
        yield skipped(f"{rooted.inside(root, CACHE)} is not there; known directories are searched instead")
    elif any(path.endswith("." + version) for path in paths):
        yield ok("the library cache has the driver's libraries")
    else:
        library = next(filter(None, (driver_files.library(root, name, version) for name in TELLTALES)), "")
        folder = os.path.dirname(library)
        # With /usr merged or not.
        searched = any(f"{directory}/".encode() in data for directory in (folder, folder.removeprefix("/usr")))
        yield warning(
            f"{rooted.inside(root, CACHE)} has no libcuda.so of {version}",
            _cache_fix(host, "" if searched else folder),
        )


def asked(host: Host) -> dict[str, Any]:
    """Return NVML's answer as listing.py prints it; it is asked once."""
    return host.once("nvml", lambda: _ask_nvml(host))


def _ask_nvml(host: Host) -> dict[str, Any]:
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "listing.py")
    python = sys.executable or "/usr/bin/python3"
    seconds = host.settings["refresh"]["deadline-seconds"] + GRACE
    version = procfs.module_version(host.proc) or ""
    words = [json.dumps(host.driver), host.proc, version, host.state]
    answer = ask.program([python, "-IB", script, *words], seconds)
    try:
        listing: dict[str, Any] = json.loads(answer.out)
    except ValueError:
        late = answer.code is None
        reason = f"NVML has not answered within {seconds:g} s" if late else f"NVML cannot be asked: {answer.last}"
        return {"error": reason, "late": late}
    return listing


def inside(host: Host, command: str) -> str:
    """Return the command for one of the driver's programs, by chroot if the driver root is not /."""
    root = host.driver["root"]
    return command if root == "/" else f"chroot {shlex.quote(root)} {command}"


def _load_fix(host: Host, name: str) -> str:
    return f"{inside(host, f'modprobe {name}')} && {REFRESH}"


def _persistence_fix(host: Host) -> str:
    root = host.driver["root"]
    if root != (host.top or "/") or not host.unit("nvidia-persistenced.service"):
        return inside(host, "nvidia-smi -pm 1")
    dead = os.path.exists(rooted.inside(root, PERSISTENCED))
    return f"systemctl {'restart' if dead else 'enable --now'} nvidia-persistenced"


def _cache_fix(host: Host, folder: str) -> str:
    """Return the command that renews the loader's cache, with `folder` added to its directories unless that is ""."""
    root = host.driver["root"]
    command = "ldconfig" if root == "/" else f"ldconfig -r {shlex.quote(root)}"
    listed = shlex.quote(rooted.inside(root, f"/{DIRECTORIES}"))
    return f"echo {shlex.quote(folder)} >>{listed} && {command}" if folder else command
