"""What the kernel module tells about itself, its GPUs and its MIG instances in /proc/driver/nvidia.

Out of scope: NVML (gpus.py), device nodes (nodes.py).
"""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpushim.inventory import entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.ground.model import Gpu

FILE_LIMIT = 1 << 20  # bytes; mig-minors, the longest, has about 0.3 MiB
UNASKED = "GPUs come from /proc/driver/nvidia, and MIG instances are not listed"  # why NVML is not used stands before
GPU_LIMIT = 256
DEFAULT_MODE = 0o666  # of the driver's nodes
_MAY_MODIFY = re.compile(r"^(ModifyDeviceFiles:\s*)1$", re.MULTILINE)
# The first line of the version file: "... Kernel Module  535.183.01  <date>", and more words for the open module.
_NONE: Mapping[str, Gpu] = MappingProxyType({})
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")


def module_version(proc: str) -> str | None:
    """Read the version of the loaded kernel module; None if none is loaded, "" if its file is not understood."""
    text = _text(proc + "/driver/nvidia/version")
    if text is None:
        return None
    match = _VERSION.search(text)
    return match[1] if match else ""


def restricted_params(proc: str) -> str:
    """Return the module's parameters as containers are to see them, or "" if they need no change.

    NVIDIA's libraries make and change device nodes under ModifyDeviceFiles: 1, which they must not in a container.
    """
    text = _text(proc + "/driver/nvidia/params") or ""
    return _MAY_MODIFY.sub(r"\g<1>0", text) if _MAY_MODIFY.search(text) else ""


def gpus(proc: str, notes: list[str], instead: Mapping[str, Gpu] = _NONE) -> list[Gpu]:
    """List whole GPUs in PCI order; what only NVML knows is empty.

    Of those in `instead`, by PCI address, nothing is read, which waits with a driver that hangs; they are as there.
    """
    folder = proc + "/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(folder), key=pci_address)[:GPU_LIMIT]
    except OSError:
        return []
    found: list[Gpu] = []
    for name in names:
        if pci_address(name) in instead:
            found.append(instead[pci_address(name)])
            continue
        fields = _fields(_text(f"{folder}/{name}/information") or "")
        if fields.get("GPU Excluded") == "Yes":
            continue  # by an administrator (NVreg_ExcludedGpus); NVML does not list it either
        minor = fields.get("Device Minor", "")
        if not re.fullmatch(r"\d{1,3}", minor, re.ASCII):
            notes.append(f"GPU {name} is left out: {folder}/{name}/information does not tell its minor number")
            continue
        uuid = fields.get("GPU UUID", "")
        found.append(
            entries.gpu(
                len(found),
                f"/dev/nvidia{int(minor)}",
                uuid="" if "?" in uuid else uuid,  # unknown until the GPU is first used
                minor=int(minor),
                pci=pci_address(fields.get("Bus Location", name)),
                model=fields.get("Model", ""),
                mig=bool(_names(f"{proc}/driver/nvidia/capabilities/gpu{int(minor)}/mig", "gi")),
            )
        )
    return found


def mig_nodes(proc: str, minor: int, gi: int, ci: int) -> list[str]:
    """Return the paths of a MIG instance's two nodes, [] if the kernel does not tell them; `minor` is the GPU's."""
    gpu = f"gpu{minor}"
    numbers = []
    for place in (f"gi{gi}/access", f"gi{gi}/ci{ci}/access"):
        fields = _fields(_text(f"{proc}/driver/nvidia/capabilities/{gpu}/mig/{place}") or "")
        number = fields.get("DeviceFileMinor") or _listed_minor(proc, f"{gpu}/{place}")
        if _number(number) >= 0:
            numbers.append(_number(number))
    return [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers] if len(numbers) == 2 else []


def capabilities(proc: str) -> Iterator[tuple[int, int, bool]]:
    """List the MIG capabilities that have nodes now: to configure, to monitor, and those of each instance.

    Yields:
        minor number, mode bits, and whether the node may be made and changed.
    """
    base = proc + "/driver/nvidia/capabilities"
    for place in ("mig/config", "mig/monitor", *_accesses(base)):
        fields = _fields(_text(f"{base}/{place}") or "")
        minor, mode = fields.get("DeviceFileMinor", ""), fields.get("DeviceFileMode", "")
        if _number(minor) >= 0:
            bits = _number(mode) & 0o777 if _number(mode) >= 0 else DEFAULT_MODE
            yield _number(minor), bits, fields.get("DeviceFileModify", "1") != "0"


def device_files(proc: str) -> tuple[int, int, int] | None:
    """Return mode bits, uid and gid that the module wants its nodes to have; None if nobody may change them."""
    fields = _fields(_text(proc + "/driver/nvidia/params") or "")
    if fields.get("ModifyDeviceFiles", "1") == "0":
        return None
    keys = (("DeviceFileMode", DEFAULT_MODE), ("DeviceFileUID", 0), ("DeviceFileGID", 0))
    found = [(_number(fields.get(key, "")), usual) for key, usual in keys]
    mode, uid, gid = (number if number >= 0 else usual for number, usual in found)
    return mode & 0o777, uid, gid


def pci_address(text: str) -> str:
    """Return a PCI address as NVML writes it, in lower case: eight digits of domain."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain:0>8}:{rest}"


def sysfs_name(pci: str) -> str:
    """Return a PCI address of the snapshot as the kernel writes it: four digits of domain, or more if needed."""
    domain, _, rest = pci.partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


def _accesses(base: str) -> Iterator[str]:
    """List the access files of GPU and compute instances below the directory of capabilities."""
    for gpu in _names(base, "gpu"):
        for gi in _names(f"{base}/{gpu}/mig", "gi"):
            yield f"{gpu}/mig/{gi}/access"
            yield from (f"{gpu}/mig/{gi}/{ci}/access" for ci in _names(f"{base}/{gpu}/mig/{gi}", "ci"))


def _listed_minor(proc: str, place: str) -> str:
    """Look a capability up in the list of all possible ones: thousands of lines of a place and its minor."""
    _, found, tail = (f"\n{_text(proc + '/driver/nvidia-caps/mig-minors') or ''}").partition(f"\n{place} ")
    return tail.partition("\n")[0] if found else ""


def _names(folder: str, prefix: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    except OSError:
        return []


def _number(text: str) -> int:
    """Read an unsigned number of 32 bits, -1 if it is none."""
    plain = text.isascii() and text.isdigit() and len(text) <= 10  # isdigit() alone takes superscripts
    return int(text) if plain and int(text) < 1 << 32 else -1


def _fields(text: str) -> dict[str, str]:
    """Split lines of "Key: value"."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _text(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            return file.read(FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return None
