"""The driver's files that containers get, by capability, as paths inside the driver root.

A container must never get libraries of two versions, so a library counts only if its file name ends with the loaded
kernel module's version; a few have versions of their own. Unlisted libraries of the driver's version come too, as new
drivers add some.
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
    """Return the snapshot's "files"; `mps` is MPS's pipe directory, "" for none; `machine` "" is this one."""
    machine = machine or platform.machine()
    cache = read_cache(root, notes)
    loader = Loader(root, machine, cache, notes, BEGINNINGS)
    loader.settle(version)
    files = {"any": data_files.firmware(root, version)}
    for capability in CAPABILITIES:
        files[capability] = entries(loader, capability, version, notes)
        files[capability] += data_files.binaries(root, capability, version, notes)
        files[capability] += data_files.configs(root, capability, machine, version)
    files["utility"] += [{"path": path, "kind": "socket"} for path in data_files.SOCKETS]
    files["utility"] += data_files.rims(root, version)
    files["ngx"] += data_files.ngx(loader)
    files["display"] += data_files.xorg(loader, version, notes)
    files["gds"] = data_files.gds(root)
    files["mps"] = data_files.mps(root, mps, version, notes)
    if machine in COMPANIONS:
        narrow = Loader(root, COMPANIONS[machine], cache, notes, BEGINNINGS)
        narrow.settle(version)
        for capability in CAPABILITIES:
            files[capability + "32"] = entries(narrow, capability, version, notes)
            files[capability + "32"] += data_files.configs(root, capability + "32", "i686", version)
    return files


def watched(root: str, version: str, files: dict[str, list[File]], busy: Container[str] = ()) -> list[str]:
    """List the directories whose times change when a file of the driver comes, goes or is replaced.

    The library cache stands for new libraries. For a directory in `busy` (paths on the host, as of one that a package
    manager writes to) its files are listed instead. Directories that others than root can change are left out: a user
    who writes there would have every create list the GPUs again.
    """
    lasting = [entry for listed in files.values() for entry in listed if entry["kind"] in LASTING]
    libraries = {os.path.dirname(entry["path"]) for entry in lasting if entry["kind"] == "library"}
    paths = {entry["path"] for entry in lasting}
    watched: set[str] = set()
    for path in paths | data_files.list_watched(root, version, libraries.union(data_files.XORG_DIRS)):
        above, _, name = path.rpartition("/")
        folder = rooted.nearest(root, above)
        if not rooted.mistrust(root, folder):
            crowded = folder in CROWDED or rooted.inside(root, folder) in busy
            watched.add(f"{folder.rstrip('/')}/{name}" if crowded else folder)
    return sorted(watched)


def usable(files: dict[str, list[File]], notes: list[str], root: str = "") -> dict[str, list[File]]:
    """Return the files that a config.json can spell and only root can change below `root`; add notes on the others.

    Only programs, firmware and data are checked for the latter: libraries are the loader's choice, as for root's own
    programs, MPS's directory has a rule of its own, and the hook checks sockets.
    """
    spelled: dict[str, list[File]] = {}
    for capability, entries in files.items():
        problems = [_spelling_problem(entry) or (root and _trust_problem(root, entry)) for entry in entries]
        spelled[capability] = [entry for entry, problem in zip(entries, problems) if not problem]
        notes += [problem for problem in dict.fromkeys(problems) if problem and problem not in notes]
    return spelled


def _spelling_problem(entry: File) -> str:
    try:
        "\0".join([entry["path"], entry.get("soname", ""), *entry.get("links", [])]).encode()
    except UnicodeEncodeError:
        return f"{quote(entry['path'])} is left out: its name or a link to it is not UTF-8; rename it"
    return ""


def _trust_problem(root: str, entry: File) -> str:
    if entry["kind"] not in WRITTEN:
        return ""
    real = rooted.resolve(root, entry["path"]) or entry["path"]
    problem = rooted.mistrust(root, os.path.dirname(real))
    with contextlib.suppress(OSError):
        if not problem and trust.others_may(os.lstat(rooted.inside(root, real))):
            problem = f"users other than root can change {real}"
    return problem and f"{entry['path']} is left out: {problem}"


def entries(loader: Loader, capability: str, version: str, notes: list[str]) -> list[File]:
    libraries = [(name, version) for name in LIBRARIES.get(capability, ())]
    libraries += [(name, "") for name in OWN_VERSION.get(capability, ())]
    libraries += [(name, version) for name in _unlisted_names(loader, version) if capability in UNLISTED]
    files: dict[str, File] = {}
    for name, ending in libraries:
        chosen = None if name in files else loader.first(name, ending, notes)
        if chosen and (ending or not DRIVERS_OWN.search(chosen[0])):  # else it is another driver's
            files[name] = {"path": chosen[0], "kind": loader.kind, "soname": chosen[1]}
            links = _links(loader, name, *chosen)
            if links:
                files[name]["links"] = links
    if "libEGL_nvidia.so" in files and "libnvidia-allocator.so" in files:
        # Not with the allocator: compute lists it too, and one entry of a path would hide the other.
        link = _gbm_link(loader, files["libnvidia-allocator.so"])
        files["libEGL_nvidia.so"].setdefault("links", []).append(link)
    return list(files.values())


def _unlisted_names(loader: Loader, version: str) -> list[str]:
    names = {
        name for folder in loader.folders for name, endings in loader.versions(folder).items() if version in endings
    }
    names -= {*LISTED, *NEUTRAL, *data_files.XORG_LIBRARIES}
    return sorted(name for name in names if name.startswith("lib"))


def _links(loader: Loader, name: str, path: str, soname: str) -> list[str]:
    folder, file = os.path.split(path)
    links = []
    always, target = ALWAYS.get(name, ("", ""))
    if always and always != file:
        links.append(f"{file if target == 'file' else soname}::{folder}/{always}")
    made = {f"{folder}/{soname}", f"{folder}/{always or soname}"}
    for spelling in loader.names(name, path):
        if spelling not in made:
            is_beside = os.path.dirname(spelling) == folder
            links.append(f"{soname if is_beside else _relative(spelling, path)}::{spelling}")
    return links


def _relative(link: str, path: str) -> str:
    """Return a path relative to a link's directory if it lies there, else as it is."""
    above = os.path.dirname(link) + "/"
    return path[len(above) :] if path.startswith(above) else path


def _gbm_link(loader: Loader, allocator: File) -> str:
    path, own_folder = allocator["path"], os.path.dirname(allocator["path"])
    for folder in (own_folder, *loader.folders):
        if rooted.resolve(loader.root, f"{folder}/{GBM}") == path:
            break
    else:
        folder = own_folder
    return f"{path if folder != own_folder else '../' + allocator['soname']}::{folder}/{GBM}"


def lacking(root: str, version: str) -> list[str]:
    return [
        f"there is no {name}.{version} below {root}, so {lost}; install that part of the driver"
        for name, lost in LOST.items()
        if not library(root, name, version)
    ]


def versions(root: str, machine: str = "") -> list[str]:
    """List the installed versions of the driver's libraries, the loader's choice first."""
    loader = Loader(root, machine, read_cache(root, []), [], BEGINNINGS)
    numbers = []
    for name in TELLTALES:
        for path in loader.candidates(name, ""):
            match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
            if match:
                numbers.append(match[1])
    return list(dict.fromkeys(numbers))


def library(root: str, name: str, version: str, machine: str = "") -> str | None:
    """Return the path of one library of a version, even of a damaged one."""
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
