"""What the kernel module tells about itself, its GPUs and its MIG instances in /proc/driver/nvidia.

`proc` is everywhere the directory where the procfs that shows the driver is mounted.
Out of scope: NVML (gpus.py), device nodes (nodes.py).
"""

from __future__ import annotations

import os
import re
from typing import Any

FILE_LIMIT = 1 << 20  # bytes; mig-minors, the longest, has about 0.3 MiB
GPU_LIMIT = 256
_MAY_MODIFY = re.compile(r"^(ModifyDeviceFiles:\s*)1$", re.MULTILINE)
# The first line of the version file: "... Kernel Module  535.183.01  <date>", and more words for the open module.
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")


def module_version(proc: str) -> str | None:
    """Read the version of the loaded kernel module; None if none is loaded, "" if its file is not understood."""
    text = _text(proc + "/driver/nvidia/version")
    if text is None:
        return None
    match = _VERSION.search(text)
    return match[1] if match else ""


def restricted_params(proc: str) -> str:
    """Return what containers are to see as the module's parameters, "" if that is what they are.

    NVIDIA's libraries make and change device nodes where it says ModifyDeviceFiles: 1; a container's are not theirs.
    """
    text = _text(proc + "/driver/nvidia/params") or ""
    return _MAY_MODIFY.sub(r"\g<1>0", text) if _MAY_MODIFY.search(text) else ""


def gpus(proc: str, notes: list[str]) -> list[dict[str, Any]]:
    """List whole GPUs in PCI order, as the snapshot has them; what only NVML knows is empty.

    Args:
        proc: see above.
        notes: gets a sentence for each GPU whose entry is not usable.
    """
    folder = proc + "/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(folder), key=pci_address)[:GPU_LIMIT]
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for name in names:
        fields = _fields(_text(f"{folder}/{name}/information") or "")
        minor = fields.get("Device Minor", "")
        if not re.fullmatch(r"\d{1,3}", minor):
            notes.append(f"GPU {name} is left out: {folder}/{name}/information does not tell its minor number")
            continue
        uuid = fields.get("GPU UUID", "")
        found.append(
            {
                "index": len(found),
                "uuid": "" if "?" in uuid else uuid,  # the module fills it in when the GPU is first used
                "minor": int(minor),
                "pci": pci_address(fields.get("Bus Location", name)),
                "model": fields.get("Model", ""),
                "brand": "",
                "arch": "",
                "mig": bool(_instances(f"{proc}/driver/nvidia/capabilities/gpu{int(minor)}/mig")),
                "node": f"/dev/nvidia{int(minor)}",
                "drm": [],
                "links": [],
                "problem": None,
            }
        )
    return found


def mig_nodes(proc: str, minor: int, gi: int, ci: int) -> list[str]:
    """Return the paths of the two nodes that give access to a MIG instance, [] if the kernel does not tell them.

    Args:
        proc: see above.
        minor: minor number of the GPU's own node, which is how the kernel numbers GPUs here.
        gi: GPU instance.
        ci: compute instance.
    """
    gpu = f"gpu{minor}"
    minors = _text(proc + "/driver/nvidia-caps/mig-minors") or ""
    numbers = []
    for place in (f"gi{gi}/access", f"gi{gi}/ci{ci}/access"):
        fields = _fields(_text(f"{proc}/driver/nvidia/capabilities/{gpu}/mig/{place}") or "")
        line = re.search(rf"^{gpu}/{place} (\d+)$", minors, re.MULTILINE)
        number = fields.get("DeviceFileMinor", line[1] if line else "")
        if number.isdigit():
            numbers.append(number)
    return [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers] if len(numbers) == 2 else []


def pci_address(text: str) -> str:
    """Write a PCI address the way NVML does, in lower case: eight digits of domain."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain:0>8}:{rest}"


def _instances(mig: str) -> list[str]:
    try:
        return [name for name in os.listdir(mig) if name.startswith("gi")]
    except OSError:
        return []


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
