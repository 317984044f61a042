"""The driver's files that containers get, by capability, from libraries.py and data_files.py.

All paths are as seen inside the driver root, and links never lead out of it.
Out of scope: device nodes (nodes.py); how containers get the files (plan.py).
"""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

from gpushim.ground.elf import ForeignError
from gpushim.ground.errors import quote
from gpushim.inventory import data_files, sonames
from gpushim.inventory.data_files import SOCKETS as SOCKETS
from gpushim.inventory.libraries import LIBRARIES, Loader, read_cache
from gpushim.inventory.libraries import TELLTALES as TELLTALES
from gpushim.paths import rooted, trust
from gpushim.paths.rooted import inside as inside
from gpushim.paths.rooted import resolve as resolve

if TYPE_CHECKING:
    from collections.abc import Container

    from gpushim.ground.model import File

CAPABILITIES = tuple(LIBRARIES)
# Libraries without which the others are useless, and what containers lack then.
LOST = {
    "libcuda.so": "programs in containers find no CUDA",
    "libnvidia-ml.so": "nvidia-smi in containers finds no driver",
}
WITH_32 = ("x86_64",)  # machines whose drivers have 32-bit libraries too
LASTING = ("library", "library32", "binary", "firmware", "data")  # kinds of files that an installer writes
WRITTEN = ("binary", "firmware", "data")  # those whose directory nobody but the installer vouches for
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


def watched(root: str, version: str, found: dict[str, list[File]], busy: Container[str] = ()) -> list[str]:
    """List the directories that change when one of these files, or another, comes or goes.

    New libraries change the library cache. Of a directory that is busy the files themselves are listed. One that
    others than root may change has none: whoever writes there would have every create list the GPUs again.

    Args:
        root: the driver root.
        version: the driver's.
        found: the driver's files.
        busy: the host's paths of directories that changed while they were read, as a package manager's do.
    """
    lasting = [entry for entries in found.values() for entry in entries if entry["kind"] in LASTING]
    libraries = {os.path.dirname(entry["path"]) for entry in lasting if entry["kind"] == "library"}
    paths = {entry["path"] for entry in lasting}
    listed: set[str] = set()
    for path in paths | data_files.places(root, version, libraries.union(data_files.XORG_DIRS)):
        above, _, name = path.rpartition("/")
        folder = rooted.nearest(root, above)
        if not rooted.mistrust(root, folder):
            crowded = folder in CROWDED or inside(root, folder) in busy
            listed.add(f"{folder.rstrip('/')}/{name}" if crowded else folder)
    return sorted(listed)


def of_root(root: str, found: dict[str, list[File]], notes: list[str]) -> dict[str, list[File]]:
    """Leave out programs and data that others than root could replace or take away, with a note for each.

    Libraries are the loader's, as for root's own programs; sockets and MPS's directory have rules of their own.
    """
    trusted: dict[str, list[File]] = {}
    for capability, entries in found.items():
        trusted[capability] = []
        for entry in entries:
            problem = _mistrust(root, entry["path"]) if entry["kind"] in WRITTEN else ""
            trusted[capability] += [] if problem else [entry]
            notes += [f"{entry['path']} is left out: {problem}"] if problem else []
    return trusted


def _mistrust(root: str, path: str) -> str:
    real = rooted.resolve(root, path) or path
    try:
        others = trust.others_may(os.lstat(inside(root, real)))
    except OSError:
        others = False
    return rooted.mistrust(root, os.path.dirname(real)) or (f"others than root may change {real}" if others else "")


def in_utf8(found: dict[str, list[File]], notes: list[str]) -> dict[str, list[File]]:
    """Leave out files with names that are not UTF-8, which no config.json can spell, with a note for each."""
    trusted: dict[str, list[File]] = {}
    for capability, entries in found.items():
        trusted[capability] = []
        for entry in entries:
            try:
                "\0".join([entry["path"], entry.get("soname", ""), *entry.get("links", [])]).encode()
                trusted[capability].append(entry)
            except UnicodeEncodeError:
                note = f"{quote(entry['path'])} is left out: its name or a link to it is not UTF-8; rename it"
                notes += [] if note in notes else [note]
    return trusted


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
