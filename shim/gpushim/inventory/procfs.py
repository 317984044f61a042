"""What the kernel tells of GPUs and MIG instances: NVIDIA's module in /proc/driver/nvidia, PCI and DRM in sysfs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpushim.inventory import ensure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpushim.ground.model import Gpu, Listed

FILE_LIMIT = 1 << 20  # bytes; mig-minors, the longest, has about 0.3 MiB
UNASKED = "GPUs come from /proc/driver/nvidia, and MIG instances are not listed"  # why NVML is not used stands before
GPU_LIMIT = 256
DEFAULT_MODE = 0o666  # of the driver's nodes
_MAY_MODIFY = re.compile(r"^(ModifyDeviceFiles:\s*)1$", re.MULTILINE)
_NONE: Mapping[str, Gpu] = MappingProxyType({})
MOMENT = 0.02  # seconds, longer than a tick of the kernel's clock for files
LOOKS = 3  # more at procfs, a moment apart, of which two that are next to each other are the same
DRI = "/dev/dri"
_DRM = re.compile(r"card\d+|renderD\d+")
# The first line of the version file: "... Kernel Module  535.183.01  <date>", and more words for the open module.
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")


def module_version(proc: str) -> str | None:
    """Read the version of the loaded kernel module; None if none is loaded, "" if its file is unreadable."""
    version = text(proc + "/driver/nvidia/version")
    if version is None:
        return None
    match = _VERSION.search(version)
    return match[1] if match else ""


def restricted_params(proc: str) -> str:
    """Return the module's parameters as containers are to see them, or "" if they need no change.

    NVIDIA's libraries make and change device nodes under ModifyDeviceFiles: 1, which they must not in a container.
    """
    params = text(proc + "/driver/nvidia/params") or ""
    return _MAY_MODIFY.sub(r"\g<1>0", params) if _MAY_MODIFY.search(params) else ""


def gpus(proc: str, notes: list[str], instead: Mapping[str, Gpu] = _NONE) -> list[Gpu]:
    """List whole GPUs in PCI order, without what only NVML knows.

    Nothing is read of the GPUs in `instead`, by PCI address, as that would hang with the driver.
    """
    folder = proc + "/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(folder), key=pci_address)[:GPU_LIMIT]
    except OSError:
        return []
    rows: list[Gpu] = []
    for name in names:
        if pci_address(name) in instead:
            rows.append(instead[pci_address(name)])
            continue
        fields = _read_fields(f"{folder}/{name}/information")
        if fields.get("GPU Excluded") == "Yes":
            continue  # by an administrator (NVreg_ExcludedGpus); NVML does not list it either
        minor = fields.get("Device Minor", "")
        if not re.fullmatch(r"\d{1,3}", minor, re.ASCII):
            notes.append(f"GPU {name} is left out: {folder}/{name}/information has no minor number")
            continue
        uuid = fields.get("GPU UUID", "")
        divided = bool(_names(f"{proc}/driver/nvidia/capabilities/gpu{int(minor)}/mig", "gi"))
        gpu: Gpu = {
            **unknown(len(rows), f"/dev/nvidia{int(minor)}"),
            "uuid": "" if "?" in uuid else uuid,  # unknown until the GPU is first used
            "minor": int(minor),
            "pci": pci_address(fields.get("Bus Location", name)),
            "model": fields.get("Model", ""),
            "mig": divided,
            "mig_capable": divided,
        }
        rows.append(gpu)
    return rows


def listed_none(version: str = "") -> Listed:
    return {"source": "proc", "version": version, "cuda": "", "gpus": [], "mig": [], "missing": [], "absent": []}


def unknown(index: int, node: str) -> Gpu:
    return {
        "index": index,
        "nvml": -1,
        "uuid": "",
        "minor": 0,
        "pci": "",
        "model": "",
        "brand": "",
        "arch": "",
        "memory": 0,
        "mig": False,
        "mig_capable": False,
        "vgpu": False,
        "pci_class": "",
        "fabric": "",
        "fabric_problem": "",
        "addressing": "",
        "numa": -1,
        "peers": [],
        "node": node,
        "drm": [],
        "links": [],
        "problem": None,
    }


def add_sysfs(gpus: Iterable[Gpu], sys: str, dev_root: str) -> None:
    """Fill in what sysfs knows of GPUs: DRM nodes with udev's links to them, PCI class, NUMA node."""
    links = _links(dev_root)
    for gpu in gpus:
        folder = f"{sys}/bus/pci/devices/{sysfs_name(gpu['pci'])}"
        names = [name for name in _names(f"{folder}/drm") if _DRM.fullmatch(name)]
        gpu["drm"] = [f"{DRI}/{name}" for name in names]
        targets = {f"../{name}" for name in names}
        gpu["links"] = [f"{target}::{path}" for target, path in links if target in targets]
        gpu["pci_class"] = (text(f"{folder}/class") or "").strip()
        with contextlib.suppress(ValueError):
            gpu["numa"] = max(int(text(f"{folder}/numa_node") or ""), -1)


def _links(dev_root: str) -> list[tuple[str, str]]:
    """List target and path in a container of udev's links by path."""
    folder = f"{DRI}/by-path"
    host = folder if dev_root == "/" else dev_root + folder
    links = []
    for name in _names(host):
        with contextlib.suppress(OSError):  # it is no link
            links.append((os.readlink(f"{host}/{name}"), f"{folder}/{name}"))
    return links


def keeps_times(proc: str, sys: str) -> bool:
    """Return whether procfs keeps the times of its entries: old kernels make new ones for each read.

    On a kernel that keeps them two reads may still differ, while MIG instances are being made.
    """
    facts = ensure.driver(proc, sys, True)
    for _ in range(LOOKS if facts["mig"] else 0):
        time.sleep(MOMENT)
        later = ensure.driver(proc, sys, True)
        if later["mig"] == facts["mig"]:
            return True
        facts = later
    return not facts["mig"]


def mig_nodes(proc: str, minor: int, gi: int, ci: int) -> list[str]:
    """Return the paths of a MIG instance's two nodes, [] if the kernel does not tell them; `minor` is the GPU's."""
    gpu = f"gpu{minor}"
    numbers = []
    for capability in (f"gi{gi}/access", f"gi{gi}/ci{ci}/access"):
        fields = _read_fields(f"{proc}/driver/nvidia/capabilities/{gpu}/mig/{capability}")
        number = fields.get("DeviceFileMinor") or _listed_minor(proc, f"{gpu}/{capability}")
        if _parse_number(number) >= 0:
            numbers.append(_parse_number(number))
    return [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers] if len(numbers) == 2 else []


def capabilities(proc: str) -> Iterator[tuple[int, int, bool]]:
    """List the MIG capabilities that have nodes now: to configure, to monitor, and those of each instance.

    Yields:
        minor number, mode bits, and whether the node may be made and changed.
    """
    base = proc + "/driver/nvidia/capabilities"
    for capability in ("mig/config", "mig/monitor", *_accesses(base)):
        fields = _read_fields(f"{base}/{capability}")
        minor, mode = fields.get("DeviceFileMinor", ""), fields.get("DeviceFileMode", "")
        if _parse_number(minor) >= 0:
            bits = _parse_number(mode) & 0o777 if _parse_number(mode) >= 0 else DEFAULT_MODE
            yield _parse_number(minor), bits, fields.get("DeviceFileModify", "1") != "0"


def device_files(proc: str) -> tuple[int, int, int] | None:
    """Return mode bits, uid and gid that the module wants its nodes to have; None if it forbids changes."""
    fields = _read_fields(proc + "/driver/nvidia/params")
    if fields.get("ModifyDeviceFiles", "1") == "0":
        return None
    keys = (("DeviceFileMode", DEFAULT_MODE), ("DeviceFileUID", 0), ("DeviceFileGID", 0))
    numbers = [(_parse_number(fields.get(key, "")), usual) for key, usual in keys]
    mode, uid, gid = (number if number >= 0 else usual for number, usual in numbers)
    return mode & 0o777, uid, gid


def majors(proc: str) -> dict[str, int]:
    """Read the character devices of /proc/devices: lines of a number and a name, up to the block devices."""
    lines = (text(proc + "/devices") or "").partition("Block devices:")[0].splitlines()
    rows = [line.split() for line in lines]
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdecimal() and len(row[0]) < 10}


def pci_address(address: str) -> str:
    """Return a PCI address as NVML writes it, in lower case: eight digits of domain."""
    domain, _, function = address.strip().lower().partition(":")
    return f"{domain:0>8}:{function}"


def sysfs_name(pci: str) -> str:
    """Return a PCI address of the snapshot as the kernel writes it: four digits of domain, or more if needed."""
    domain, _, function = pci.partition(":")
    return f"{domain.lstrip('0'):0>4}:{function}"


def _accesses(base: str) -> Iterator[str]:
    """List the access files of GPU and compute instances below the directory of capabilities."""
    for gpu in _names(base, "gpu"):
        for gi in _names(f"{base}/{gpu}/mig", "gi"):
            yield f"{gpu}/mig/{gi}/access"
            yield from (f"{gpu}/mig/{gi}/{ci}/access" for ci in _names(f"{base}/{gpu}/mig/{gi}", "ci"))


def _listed_minor(proc: str, capability: str) -> str:
    """Return a capability's minor from the list of all possible ones, or ""."""
    _, separator, tail = (f"\n{text(proc + '/driver/nvidia-caps/mig-minors') or ''}").partition(f"\n{capability} ")
    return tail.partition("\n")[0] if separator else ""


def _names(folder: str, prefix: str = "") -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    except OSError:
        return []


def _parse_number(word: str) -> int:
    """Return an unsigned number of 32 bits, -1 if the word is none."""
    plain = word.isascii() and word.isdigit() and len(word) <= 10  # isdigit() alone takes superscripts
    return int(word) if plain and int(word) < 1 << 32 else -1


def _read_fields(path: str) -> dict[str, str]:
    """Read lines of "Key: value" from a file; {} if it cannot be read."""
    pairs = (line.partition(":") for line in (text(path) or "").splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def text(path: str) -> str | None:
    """Read a file of the kernel's, as far as FILE_LIMIT; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            return file.read(FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return None
