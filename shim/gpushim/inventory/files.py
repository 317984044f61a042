"""The driver's files that containers get, by capability, from libraries.py and data_files.py.

All paths are as seen inside the driver root, and links never lead out of it.
Out of scope: device nodes (nodes.py); how containers get the files (plan.py).
"""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from gpushim.elf import ForeignError
from gpushim.inventory import data_files, rooted, sonames
from gpushim.inventory.data_files import SOCKETS as SOCKETS
from gpushim.inventory.libraries import LIBRARIES, Loader, read_cache
from gpushim.inventory.libraries import TELLTALES as TELLTALES
from gpushim.inventory.rooted import inside as inside
from gpushim.inventory.rooted import resolve as resolve

if TYPE_CHECKING:
    from gpushim.model import File

CAPABILITIES = tuple(LIBRARIES)
# Libraries without which the others are useless, and what containers lack then.
LOST = {
    "libcuda.so": "programs in containers find no CUDA",
    "libnvidia-ml.so": "nvidia-smi in containers finds no driver",
}
WITH_32 = ("x86_64",)  # machines whose drivers have 32-bit libraries too
LASTING = ("library", "library32", "binary", "firmware", "data")  # kinds of files that an installer writes
CROWDED = ("/", "/etc")  # directories that change for reasons unrelated to the driver


def find(root: str, version: str, notes: list[str], *, mps: str = "", machine: str = "") -> dict[str, list[File]]:
    """Return the snapshot's "files": `mps` is the MPS pipe directory, "" for none; `machine`, "" for this one."""
    machine = machine or platform.machine()
    cache = read_cache(root, notes)
    loader = Loader(root, machine, cache, notes)
    loader.settle(version)
    found = {"any": data_files.firmware(root, version)}
    for capability in CAPABILITIES:
        found[capability] = loader.entries(capability, version, notes)
        found[capability] += data_files.binaries(root, capability)
        found[capability] += data_files.configs(root, capability, machine)
    found["utility"] += data_files.sockets(root)
    found["display"] += data_files.xorg(loader, version)
    found["gds"] = data_files.gds(root)
    found["mps"] = data_files.mps(root, mps)
    if machine in WITH_32:
        narrow = Loader(root, "i386", cache, notes)
        narrow.settle(version)
        for capability in CAPABILITIES:
            entries = narrow.entries(capability, version, notes)
            found[capability + "32"] = entries + data_files.configs(root, capability + "32", "i686")
    return found


def watched(root: str, found: dict[str, list[File]]) -> list[str]:
    """List the directories that change when one of these files comes or goes, and files in crowded directories.

    New libraries change the library cache.
    """
    paths = {entry["path"] for entries in found.values() for entry in entries if entry["kind"] in LASTING}
    folders = {rooted.resolve(root, path.rpartition("/")[0] or "/") for path in paths}
    return [data_files.CUFILE, *sorted(folder for folder in folders if folder and folder not in CROWDED)]


def lacking(root: str, version: str) -> list[str]:
    """Say which libraries of LOST are missing, a sentence for each."""
    return [
        f"there is no {name}.{version} below {root}, so {lost}; install that part of the driver"
        for name, lost in LOST.items()
        if not library(root, name, version)
    ]


def versions(root: str, machine: str = "") -> list[str]:
    """List the installed versions of the driver's libraries, the loader's choice first."""
    loader = Loader(root, machine, read_cache(root, []), [])
    found = []
    for name in TELLTALES:
        for path in loader.candidates(name, ""):
            match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
            if match:
                found.append(match[1])
    return list(dict.fromkeys(found))


def library(root: str, name: str, version: str, machine: str = "") -> str | None:
    """Find one library of a version; returns its path inside the root, even if it is damaged."""
    loader = Loader(root, machine, read_cache(root, []), [])
    for path in loader.candidates(name, version):
        try:
            sonames.soname(rooted.inside(root, path), machine)
        except ForeignError:
            continue
        except (OSError, ValueError):
            pass  # whoever loads it says what is wrong
        return path
    return None
