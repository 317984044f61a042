"""The driver's files other than libraries: programs, firmware, configuration, X.Org modules; names of its sockets."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from gpushim.inventory.loader import soname
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import File
    from gpushim.inventory.loader import Loader

BINARIES = {
    "utility": (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nvidia-imex",
        "nvidia-imex-ctl",
    ),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),  # MPS needs all of them
}
BINARY_DIRS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin")
# Programs of one driver alone, though their file names do not say so: its version is in them as a string.
TIED = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia_drv.so")
VERSION = re.compile(rb"\0(\d{3,}\.\d{2,3}(?:\.\d{2})?)(?=\0)")
PROGRAM_LIMIT = 64 << 20  # bytes; nvidia_drv.so has 6 MiB
NIXOS_BINARIES = "/run/current-system/sw/bin"
CUFILE = "/etc/cufile.json"
UDEV = "/run/udev/data"  # alone: beside it root's udevd listens
# Of services that start and end when they like: the hook looks for them (gpuhook/inject/service_sockets.py).
PERSISTENCED = "/run/nvidia-persistenced/socket"
SOCKETS = (PERSISTENCED, "/run/nvidia-fabricmanager/socket")

ARCHS = ("x86_64", "aarch64", "i686")  # as file names have them
# By capability, below each of CONFIG_DIRS; {arch} is one of ARCHS, {version} the driver's.
CONFIGS = {
    "compute": ("OpenCL/vendors/nvidia.icd",),
    "graphics": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_icd.{arch}.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
        "nvidia/nvoptix.bin",
        "nvidia/nvidia-application-profiles-{version}-rc",
    ),
    "graphics32": ("vulkan/icd.d/nvidia_icd.{arch}.json",),
    "display": (
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/10-nvidia-drm-outputclass.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        "nvidia/nvidia-application-profiles-{version}-key-documentation",  # of nvidia-settings' window
    ),
}
CONFIG_DIRS = ("/etc", "/usr/local/share", "/usr/share")
NIXOS_CONFIGS = {"/etc": "/run/opengl-driver/etc", "/usr/share": "/run/opengl-driver/share"}
RIMS = "/usr/share/nvidia/rim"  # reference measurements, by which a GPU's attestation is verified

XORG_LIBRARIES = ("libglxserver_nvidia.so", "libglx.so")  # the latter up to 390; X.Org has one of that name too
XORG_DIRS = ("/usr/lib", "/usr/lib64", "/usr/X11R6/lib", "/usr/X11R6/lib64")
XORG_MODULES = (  # places below a library directory, for drivers and for extensions
    ("nvidia/xorg", "xorg/modules/drivers", "xorg/modules/updates/drivers", "modules/drivers"),
    (
        *("nvidia/xorg", "xorg/modules/extensions", "xorg/modules/updates/extensions", "modules/extensions"),
        "xorg/modules/linux",
    ),
)
FIRMWARE_PATH = "/sys/module/firmware_class/parameters/path"
PATH_LIMIT = 4096  # bytes, PATH_MAX


def binaries(root: str, capability: str, version: str, notes: list[str]) -> list[File]:
    """List the first program of each name, unless its version shows that it belongs to another driver."""
    files: list[File] = []
    for name in BINARIES.get(capability, ()):
        # No container looks where NixOS has its programs: it gets a link in /usr/bin.
        pairs = [(f"{folder}/{name}", f"{folder}/{name}") for folder in BINARY_DIRS]
        pairs.append((f"{NIXOS_BINARIES}/{name}", f"/usr/bin/{name}"))
        files += [entry for entry in list(_hits(root, pairs, "binary"))[:1] if _is_of(root, entry, version, notes)]
    return files


def _is_of(root: str, entry: File, version: str, notes: list[str]) -> bool:
    """Return whether a program's version is the driver's or cannot be told; add a note if it differs."""
    path = rooted.inside(root, entry["path"])
    if os.path.basename(path) not in TIED:
        return True
    try:
        with open(path, "rb", opener=rooted.nonblocking) as file:
            versions = {text.decode() for text in VERSION.findall(file.read(PROGRAM_LIMIT))}
    except OSError:
        return True  # whoever starts it says what is wrong
    if not versions or version in versions:
        return True
    note = f"{path} is left out: it is of driver {min(versions)}, and the kernel module is {version}"
    notes += [note] if note not in notes else []
    return False


def configs(root: str, capability: str, arch: str, version: str) -> list[File]:
    pairs = []
    for folder, actual in [*zip(CONFIG_DIRS, CONFIG_DIRS), *NIXOS_CONFIGS.items(), *_flat(root)]:
        for name in CONFIGS.get(capability, ()):
            below = name.format(arch=arch, version=version)
            pairs.append((f"{actual}/{below}", f"{folder}/{below}"))
    return list(_hits(root, pairs, "data"))


def _flat(root: str) -> list[tuple[str, str]]:
    """Return the top of a driver root as the place of /etc's files: some installers put all into one directory.

    Google's for its Container-Optimized OS, for one: bin, lib64, vulkan/icd.d and firmware.
    """
    return [("/etc", "")] if root != "/" else []


def ngx(loader: Loader) -> list[File]:
    """List the NGX libraries for Windows programs, which Proton loads."""
    folders = [f"{folder}/nvidia/wine" for folder in loader.folders]
    paths = [f"{folder}/{name}" for folder in folders for name in rooted.listing(loader.root, folder)]
    return list(_hits(loader.root, [(path, path) for path in paths if path.endswith(".dll")], "data"))


def rims(root: str, version: str) -> list[File]:
    paths = [f"{RIMS}/{version}/{name}" for name in rooted.listing(root, f"{RIMS}/{version}")]
    return list(_hits(root, [(path, path) for path in paths], "data"))


def xorg(loader: Loader, version: str, notes: list[str]) -> list[File]:
    """List the X server's modules: the first of each name that is for this machine and of this driver."""
    folders = list(dict.fromkeys([*loader.folders, *XORG_DIRS]))
    files = []
    for names, subfolders in zip(_xorg_names(version), XORG_MODULES):
        paths = [f"{folder}/{below}/{name}" for name in names for folder in folders for below in subfolders]
        for entry in _hits(loader.root, [(path, path) for path in paths], "data"):
            if not _is_module(loader, entry, version, notes):
                continue
            stem, _, ending = os.path.basename(entry["path"]).partition(".so")
            if ending:  # X looks for the name without a version
                link = f"{os.path.dirname(entry['path'])}/{stem}.so"
                entry.setdefault("links", []).append(f"{os.path.basename(entry['path'])}::{link}")
            files.append(entry)
            break
    return files


def _is_module(loader: Loader, entry: File, version: str, notes: list[str]) -> bool:
    real = rooted.resolve(loader.root, entry["path"]) or ""
    try:
        soname(rooted.inside(loader.root, real), loader.machine)
    except (OSError, ValueError):
        return False
    if os.path.basename(real).startswith(XORG_LIBRARIES):
        return real.endswith(f".{version}")
    return _is_of(loader.root, entry, version, notes)


def _xorg_names(version: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("nvidia_drv.so",), tuple(f"{name}{end}" for name in XORG_LIBRARIES for end in (f".{version}", ""))


def firmware(root: str, version: str) -> list[File]:
    """List the GSP's firmware, of each name the file that the kernel loads (fw_path in firmware_loader/main.c)."""
    files: dict[str, File] = {}
    bases = [(base, base) for base in _firmware_folders(root)]
    for base, path in [*bases, *([("/firmware", "/lib/firmware")] if root != "/" else ())]:
        for name in rooted.listing(root, f"{base}/nvidia/{version}"):
            if name.startswith("gsp") and name.endswith(".bin") and name not in files:
                below = f"nvidia/{version}/{name}"
                hits = _hits(root, [(f"{base}/{below}", f"{path}/{below}")], "firmware")
                files.update((name, entry) for entry in hits)
    return list(files.values())


def _firmware_folders(root: str) -> list[str]:
    release = os.uname().release
    below = (f"/updates/{release}", "/updates", f"/{release}", "")
    return [*_firmware_path(root), *("/lib/firmware" + name for name in below)]


def _firmware_path(root: str) -> list[str]:
    """Return the directory that the kernel searches first, which may lie in the driver root."""
    for path in dict.fromkeys((rooted.inside(root, FIRMWARE_PATH), FIRMWARE_PATH)):
        try:
            with open(path, "rb", opener=rooted.nonblocking) as file:
                folder = os.fsdecode(file.read(PATH_LIMIT)).rstrip("\n").rstrip("/")
        except OSError:
            continue
        if root != "/" and folder.startswith(root + "/"):
            folder = folder[len(root) :]
        return [folder] if folder.startswith("/") else []
    return []


def gds(root: str) -> list[File]:
    """List what GPUDirect Storage needs beside its nodes: its configuration and udev's database of disks."""
    files = list(_hits(root, [(CUFILE,) * 2], "data"))
    if rooted.kind(root, UDEV) == stat.S_IFDIR and not rooted.mistrust(root, UDEV):
        files.append({"path": UDEV, "kind": "directory"})
    return files


def list_watched(root: str, version: str, libraries: set[str]) -> set[str]:
    """Return the paths where the driver's files may appear later; one that ends with / is a directory of any names.

    `libraries` are the directories of the driver's libraries.
    """
    configs = {
        name.format(arch=arch, version=version) for names in CONFIGS.values() for name in names for arch in ARCHS
    }
    watched = {f"{folder}/{name}" for folder in (*CONFIG_DIRS, *NIXOS_CONFIGS.values()) for name in configs}
    watched |= {f"{below}/nvidia/{version}/" for below in _firmware_folders(root)} | {CUFILE}
    # Programs, and X.Org's modules, of which most hosts have none: only where such a directory is.
    usual = {f"{folder}/{name}" for folder in BINARY_DIRS for names in BINARIES.values() for name in names}
    for names, subfolders in zip(_xorg_names(version), XORG_MODULES):
        usual |= {f"{folder}/{below}/{name}" for name in names for folder in libraries for below in subfolders}
    usual |= {f"{folder}/nvidia/wine/" for folder in libraries} | {f"{RIMS}/{version}/"}
    if root != "/":
        usual |= {f"/{name}" for name in configs} | {f"/firmware/nvidia/{version}/"}
    return watched | {path for path in usual if rooted.resolve(root, os.path.dirname(path))}


def mps(root: str, pipes: str, version: str, notes: list[str]) -> list[File]:
    """List MPS's programs and its daemon's pipe directory, if the daemon runs and the directory can be trusted."""
    if not pipes or mps_problem(root, pipes):
        return []
    return [{"path": pipes, "kind": "directory"}, *binaries(root, "compute", version, notes)]


def mps_problem(root: str, pipes: str) -> str:
    """Return why containers get no MPS, "" if they do.

    A user who may write to the pipe directory, or replace it, decides what containers talk to.
    """
    wrong = rooted.mistrust(root, pipes)
    below = f"; all of it below the driver root {root}" if root != "/" else ""
    if wrong:
        return (
            f"no container takes part in MPS: {wrong}; start the daemon with CUDA_MPS_PIPE_DIRECTORY=DIR, where DIR "
            "and all above it are root's with mode 0755 and no links, and name DIR as pipe-directory under [mps]; or "
            f"let root make this one again, and run gpushim refresh{below}"
        )
    if rooted.kind(root, f"{pipes}/control") not in (stat.S_IFSOCK, stat.S_IFIFO):
        return (
            f"no container takes part in MPS: no control daemon has its pipes in {pipes}; start it with "
            f"CUDA_MPS_PIPE_DIRECTORY={pipes}{below}"
        )
    return ""


def _hits(root: str, pairs: list[tuple[str, str]], kind: str) -> Iterator[File]:
    """List the regular files among pairs of a path on the host and the path where programs look, no path twice."""
    listed = set()
    for source, path in pairs:
        real = rooted.resolve(root, source)
        if path in listed or not real or rooted.kind(root, real) != stat.S_IFREG:
            continue
        entry = rooted.entry(root, path, real, kind)
        if entry["path"] not in listed:
            yield entry
        listed |= {path, entry["path"]}
