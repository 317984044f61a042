"""The driver's files that containers get, by capability: its libraries, and those of data_files.py.

A library with the driver's version counts only if its file name ends with the version of the loaded kernel module: a
container must never get libraries of two versions. For the few with versions of their own, the loader's choice
counts. Unlisted libraries of the driver's version come too: new drivers have libraries that no list can know.
All paths are as seen inside the driver root, and links never lead out of it.
Out of scope: where the loader finds them (loader.py); device nodes (nodes.py); how containers get them (plan.py).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from typing import TYPE_CHECKING

from gpushim.ground.elf import ForeignError
from gpushim.ground.errors import quote
from gpushim.ground.machines import COMPANIONS
from gpushim.inventory import data_files
from gpushim.inventory.loader import TELLTALES, Loader, read_cache, soname
from gpushim.paths import rooted, trust

if TYPE_CHECKING:
    from collections.abc import Container

    from gpushim.ground.model import File

# By capability: libraries whose file names end with the driver's version.
LIBRARIES = {
    "utility": ("libnvidia-ml.so", "libnvidia-cfg.so", "libnvidia-nscq.so"),
    "compute": (
        "libcuda.so",
        "libcudadebugger.so",
        "libnvidia-opencl.so",
        "libnvidia-gpucomp.so",
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-fatbinaryloader.so",
        "libnvidia-allocator.so",
        "libnvidia-compiler.so",
        "libnvidia-pkcs11.so",
        "libnvidia-pkcs11-openssl3.so",
        "libnvidia-nvvm.so",
        "libnvidia-tileiras.so",
    ),
    "video": ("libvdpau_nvidia.so", "libnvidia-encode.so", "libnvidia-opticalflow.so", "libnvcuvid.so"),
    "graphics": (
        "libnvidia-eglcore.so",
        "libnvidia-glcore.so",
        "libnvidia-tls.so",
        "libnvidia-glsi.so",
        "libnvidia-fbc.so",
        "libnvidia-ifr.so",
        "libnvidia-rtcore.so",
        "libnvoptix.so",
        "libGLX_nvidia.so",
        "libEGL_nvidia.so",
        "libGLESv2_nvidia.so",
        "libGLESv1_CM_nvidia.so",
        "libnvidia-glvkspirv.so",
        "libnvidia-cbl.so",
        "libnvidia-vulkan-producer.so",
        "libnvidia-vksc-core.so",
        "libnvidia-gpucomp.so",  # the others load it since 545; a container for graphics alone needs it too
        "libnvidia-allocator.so",  # it is the driver's back end of GBM
        "libcuda.so",  # rtcore loads it, for ray tracing, and it the two below
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-nvvm.so",
    ),
    "ngx": ("libnvidia-ngx.so", "libnvidia-ml.so"),  # which it loads
    "display": ("libnvidia-gtk2.so", "libnvidia-gtk3.so", "libnvidia-wayland-client.so"),  # nvidia-settings' windows
}
# By capability: libraries with versions of their own.
OWN_VERSION = {
    "compute": ("libnvidia-nvvm70.so", "libnvidia-nvvm.so"),  # the latter has the driver's since 495
    "graphics": (
        "libnvidia-egl-gbm.so",
        "libnvidia-egl-wayland.so",
        "libnvidia-egl-wayland2.so",
        "libnvidia-egl-xcb.so",
        "libnvidia-egl-xlib.so",
        "libnvidia-api.so",
        "libnvidia-nvvm.so",
    ),
}
UNLISTED = ("compute", "graphics")  # capabilities that get the driver's unlisted libraries
DRIVERS_OWN = re.compile(r"\.so\.\d{3,}\.[\d.]+$")  # ends as a driver's version does: 470.256.02
# Not only the driver's: an image has its own, which dispatches to whichever driver it finds.
NEUTRAL = ("libGL.so", "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so")
LISTED = frozenset(name for lists in (LIBRARIES, OWN_VERSION) for names in lists.values() for name in names)
BEGINNINGS = tuple({name[:6].encode() for name in LISTED})  # for a cache with thousands of others
# Links that programs need and a host may lack; the driver's installer or ldconfig makes them. "file": to the file
# itself, as an image's own SONAME link may lead elsewhere.
ALWAYS = {
    "libcuda.so": ("libcuda.so", "soname"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so", "soname"),
    "libGLX_nvidia.so": ("libGLX_indirect.so.0", "file"),
    "libnvidia-vulkan-producer.so": ("libnvidia-vulkan-producer.so", "file"),
}
GBM = "gbm/nvidia-drm_gbm.so"  # libgbm's name for the allocator, where it looks for its back ends
CAPABILITIES = tuple(LIBRARIES)
# Libraries without which the others are useless, and what containers lack then.
LOST = {
    "libcuda.so": "programs in containers find no CUDA",
    "libnvidia-ml.so": "nvidia-smi in containers finds no driver",
}
LASTING = ("library", "library32", "binary", "firmware", "data")  # kinds of files that an installer writes
WRITTEN = ("binary", "firmware", "data")  # those whose directory nobody but the installer vouches for
CROWDED = ("/", "/etc")  # directories that change for reasons unrelated to the driver


def find(root: str, version: str, notes: list[str], *, mps: str = "", machine: str = "") -> dict[str, list[File]]:
    """Return the snapshot's "files": `mps` is the MPS pipe directory, "" for none; `machine`, "" for this one."""
    machine = machine or platform.machine()
    cache = read_cache(root, notes)
    loader = Loader(root, machine, cache, notes, BEGINNINGS)
    loader.settle(version)
    found = {"any": data_files.firmware(root, version)}
    for capability in CAPABILITIES:
        found[capability] = entries(loader, capability, version, notes)
        found[capability] += data_files.binaries(root, capability, version, notes)
        found[capability] += data_files.configs(root, capability, machine, version)
    found["utility"] += [{"path": path, "kind": "socket"} for path in data_files.SOCKETS]
    found["utility"] += data_files.rims(root, version)
    found["ngx"] += data_files.ngx(loader)
    found["display"] += data_files.xorg(loader, version, notes)
    found["gds"] = data_files.gds(root)
    found["mps"] = data_files.mps(root, mps, version, notes)
    if machine in COMPANIONS:
        narrow = Loader(root, COMPANIONS[machine], cache, notes, BEGINNINGS)
        narrow.settle(version)
        for capability in CAPABILITIES:
            found[capability + "32"] = entries(narrow, capability, version, notes)
            found[capability + "32"] += data_files.configs(root, capability + "32", "i686", version)
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
    lasting = [entry for listed in found.values() for entry in listed if entry["kind"] in LASTING]
    libraries = {os.path.dirname(entry["path"]) for entry in lasting if entry["kind"] == "library"}
    paths = {entry["path"] for entry in lasting}
    watched: set[str] = set()
    for path in paths | data_files.places(root, version, libraries.union(data_files.XORG_DIRS)):
        above, _, name = path.rpartition("/")
        folder = rooted.nearest(root, above)
        if not rooted.mistrust(root, folder):
            crowded = folder in CROWDED or rooted.inside(root, folder) in busy
            watched.add(f"{folder.rstrip('/')}/{name}" if crowded else folder)
    return sorted(watched)


def usable(found: dict[str, list[File]], notes: list[str], root: str = "") -> dict[str, list[File]]:
    """Leave out what no config.json can spell, and what others than root could change below a root; a note says so.

    The latter are programs and data. Libraries are the loader's, as for root's own programs; MPS's directory has
    rules of its own, and at sockets the hook looks.
    """
    left: dict[str, list[File]] = {}
    for capability, entries in found.items():
        problems = [_unspelled(entry) or (root and _mistrust(root, entry)) for entry in entries]
        left[capability] = [entry for entry, problem in zip(entries, problems) if not problem]
        notes += [problem for problem in dict.fromkeys(problems) if problem and problem not in notes]
    return left


def _unspelled(entry: File) -> str:
    try:
        "\0".join([entry["path"], entry.get("soname", ""), *entry.get("links", [])]).encode()
    except UnicodeEncodeError:
        return f"{quote(entry['path'])} is left out: its name or a link to it is not UTF-8; rename it"
    return ""


def _mistrust(root: str, entry: File) -> str:
    if entry["kind"] not in WRITTEN:
        return ""
    real = rooted.resolve(root, entry["path"]) or entry["path"]
    problem = rooted.mistrust(root, os.path.dirname(real))
    with contextlib.suppress(OSError):
        if not problem and trust.others_may(os.lstat(rooted.inside(root, real))):
            problem = f"users other than root can change {real}"
    return problem and f"{entry['path']} is left out: {problem}"


def entries(loader: Loader, capability: str, version: str, notes: list[str]) -> list[File]:
    """List a capability's libraries, as the snapshot has them."""
    named = [(name, version) for name in LIBRARIES.get(capability, ())]
    named += [(name, "") for name in OWN_VERSION.get(capability, ())]
    named += [(name, version) for name in _unlisted(loader, version) if capability in UNLISTED]
    found: dict[str, File] = {}
    for name, ending in named:
        chosen = None if name in found else loader.first(name, ending, notes)
        if chosen and (ending or not DRIVERS_OWN.search(chosen[0])):  # else it is another driver's
            found[name] = {"path": chosen[0], "kind": loader.kind, "soname": chosen[1]}
            links = _links(loader, name, *chosen)
            if links:
                found[name]["links"] = links
    if "libEGL_nvidia.so" in found and "libnvidia-allocator.so" in found:
        # Not with the allocator: compute lists it too, and one entry of a path would hide the other.
        link = _gbm_link(loader, found["libnvidia-allocator.so"])
        found["libEGL_nvidia.so"].setdefault("links", []).append(link)
    return list(found.values())


def _unlisted(loader: Loader, version: str) -> list[str]:
    """List the unlisted libraries of exactly the driver's version in its directories."""
    found = {name for folder in loader.folders for name, all_ in loader.versions(folder).items() if version in all_}
    found -= {*LISTED, *NEUTRAL, *data_files.XORG_LIBRARIES}
    return sorted(name for name in found if name.startswith("lib"))


def _links(loader: Loader, name: str, path: str, soname: str) -> list[str]:
    folder, file = os.path.split(path)
    links = []
    always, target = ALWAYS.get(name, ("", ""))
    if always and always != file:
        links.append(f"{file if target == 'file' else soname}::{folder}/{always}")
    made = {f"{folder}/{soname}", *(f"{folder}/{one}" for one in (always,) if one)}
    for spelling in loader.names(name, path):
        if spelling not in made:
            beside = os.path.dirname(spelling) == folder
            links.append(f"{soname if beside else _from(spelling, path)}::{spelling}")
    return links


def _from(link: str, path: str) -> str:
    """Spell a path as a link beside or above it does; else from the top."""
    above = os.path.dirname(link) + "/"
    return path[len(above) :] if path.startswith(above) else path


def _gbm_link(loader: Loader, allocator: File) -> str:
    path, beside = allocator["path"], os.path.dirname(allocator["path"])
    for folder in (beside, *loader.folders):
        if rooted.resolve(loader.root, f"{folder}/{GBM}") == path:
            break
    else:
        folder = beside
    return f"{path if folder != beside else '../' + allocator['soname']}::{folder}/{GBM}"


def lacking(root: str, version: str) -> list[str]:
    """Say which libraries of LOST are missing, a sentence for each."""
    return [
        f"there is no {name}.{version} below {root}, so {lost}; install that part of the driver"
        for name, lost in LOST.items()
        if not library(root, name, version)
    ]


def versions(root: str, machine: str = "") -> list[str]:
    """List the installed versions of the driver's libraries, the loader's choice first."""
    loader = Loader(root, machine, read_cache(root, []), [], BEGINNINGS)
    found = []
    for name in TELLTALES:
        for path in loader.candidates(name, ""):
            match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
            if match:
                found.append(match[1])
    return list(dict.fromkeys(found))


def library(root: str, name: str, version: str, machine: str = "") -> str | None:
    """Find one library of a version; returns its path inside the root, even if it is damaged."""
    loader = Loader(root, machine, read_cache(root, []), [], BEGINNINGS)
    for path in loader.candidates(name, version):
        try:
            soname(rooted.inside(root, path), machine)
        except ForeignError:
            continue
        except (OSError, ValueError):
            pass  # whoever loads it says what is wrong
        return path
    return None
