"""The driver's libraries: which there are, and which of several files of one name is the driver's.

A library with the driver's version counts only if its file name ends with the version of the loaded kernel module: a
container must never get libraries of two versions. For the few with versions of their own, the loader's choice
counts. They are looked up in the root's ld.so.cache, then in known directories, for hosts without a cache (NixOS,
musl, driver containers). Unlisted libraries of the driver's version come too: new drivers have libraries that no list
can know.
Out of scope: the driver's other files (data_files.py); how containers get them (plan.py).
"""

from __future__ import annotations

import os
import platform
import stat
from typing import TYPE_CHECKING

from gpushim.ground.elf import ForeignError
from gpushim.inventory import ldcache_list, sonames
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    ),
    "ngx": ("libnvidia-ngx.so",),
    "display": ("libnvidia-gtk2.so", "libnvidia-gtk3.so", "libnvidia-wayland-client.so"),  # nvidia-settings' windows
}
# By capability: libraries with versions of their own.
OWN_VERSION = {
    "compute": ("libnvidia-nvvm70.so",),
    "graphics": (
        "libnvidia-egl-gbm.so",
        "libnvidia-egl-wayland.so",
        "libnvidia-egl-wayland2.so",
        "libnvidia-egl-xcb.so",
        "libnvidia-egl-xlib.so",
        "libnvidia-api.so",
    ),
}
UNLISTED = ("compute", "graphics")  # capabilities that get the driver's unlisted libraries
# Not only the driver's: an image has its own, which dispatches to whichever driver it finds.
NEUTRAL = ("libGL.so", "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so")
LISTED = frozenset(name for lists in (LIBRARIES, OWN_VERSION) for names in lists.values() for name in names)
BEGINNINGS = tuple({name[:6].encode() for name in LISTED})  # for a cache with thousands of others
BELOW = {"libvdpau_nvidia.so": "/vdpau"}  # libraries in a directory of their own, which no loader searches
TELLTALES = ("libcuda.so", "libnvidia-ml.so")  # one of them is there if the driver's libraries are
# Links that programs need and a host may lack; the driver's installer or ldconfig makes them. "file": to the file
# itself, as an image's own SONAME link may lead elsewhere.
ALWAYS = {
    "libcuda.so": ("libcuda.so", "soname"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so", "soname"),
    "libGLX_nvidia.so": ("libGLX_indirect.so.0", "file"),
    "libnvidia-vulkan-producer.so": ("libnvidia-vulkan-producer.so", "file"),
}
GBM = "gbm/nvidia-drm_gbm.so"  # libgbm's name for the allocator, where it looks for its back ends
DIRS32 = ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib", "/lib32", "/lib/i386-linux-gnu", "/lib")
NIXOS_DIRS = {"i386": "/run/opengl-driver-32/lib"}
CACHE = "/etc/ld.so.cache"
CACHE_LIMIT = 64 << 20  # bytes; a crowded host has 0.3 MiB


class Loader:
    """What the loader of a machine finds in a root, and what is in known directories.

    Attributes:
        root: the driver root.
        machine: as uname names it, or "i386".
        cached: what the ld.so.cache names: "libcuda.so" to paths, in the cache's order.
        folders: known directories that are there, without links.
        kind: of the snapshot's entries.
    """

    __slots__ = ("_listed", "_real", "cached", "folders", "kind", "machine", "root")

    def __init__(self, root: str, machine: str, data: bytes, notes: list[str]) -> None:
        self.root = root
        self.machine = machine or platform.machine()
        self.kind = "library32" if self.machine == "i386" else "library"
        self.cached: dict[str, list[str]] = {}
        try:
            for key, path in ldcache_list.libraries(data, self.machine, BEGINNINGS) if data else ():
                self.cached.setdefault(key[: key.find(".so") + 3], []).append(path)
        except ValueError as error:
            _note(notes, rooted.inside(root, CACHE), f"is not used: {error}")
        self._listed: dict[str, dict[str, list[str]]] = {}  # of directories: libraries, versions
        self._real: dict[str, str | None] = {}  # directories without links
        known = (rooted.resolve(root, folder) for folder in directories(self.machine))
        self.folders = [folder for folder in dict.fromkeys(known) if folder]

    def settle(self, version: str) -> None:
        """Look beside the driver's main libraries too: the cache, or a link, may lead to an unusual directory."""
        found = [path for name in TELLTALES for path in self.candidates(name, version)]
        self.folders = list(dict.fromkeys([*(os.path.dirname(path) for path in found), *self.folders]))

    def candidates(self, name: str, version: str) -> Iterator[str]:
        """List the files of a library, links followed, the loader's choice first; version "" for any."""
        for path in self._spellings(name, version):
            real = self._file(path)
            if real and (not version or real.endswith("." + version)):
                yield real

    def _file(self, path: str) -> str | None:
        """Follow the links of a path to a regular file, those of its directory once for all files there."""
        folder, name = os.path.split(path)
        if folder not in self._real:
            self._real[folder] = rooted.resolve(self.root, folder)
        above = self._real[folder]
        real = None if above is None else f"{above.rstrip('/')}/{name}"
        kind = rooted.kind(self.root, real)
        if kind == stat.S_IFLNK:
            real = rooted.resolve(self.root, path)
            kind = rooted.kind(self.root, real)
        return real if kind == stat.S_IFREG else None

    def _spellings(self, name: str, version: str) -> Iterator[str]:
        yield from self.cached.get(name, ())
        for folder in self.folders:
            place = folder + BELOW.get(name, "")
            if version:
                yield f"{place}/{name}.{version}"
            else:
                yield from (f"{place}/{name}.1", f"{place}/{name}")
        for folder in () if version else self.folders:  # without ldconfig there may be no link
            found = self._versions(folder).get(name, ())
            yield from (f"{folder}/{name}.{ending}" for ending in sorted(found, key=_numbers, reverse=True))

    def _versions(self, folder: str) -> dict[str, list[str]]:
        """List the versions of each library in a directory, as the file names have them."""
        if folder not in self._listed:
            self._listed[folder] = {}
            for file in rooted.listing(self.root, folder):
                stem, _, ending = file.partition(".so.")
                if ending and not ending.strip("0123456789."):
                    self._listed[folder].setdefault(stem + ".so", []).append(ending)
        return self._listed[folder]

    def _unlisted(self, version: str) -> list[str]:
        """List the unlisted libraries of exactly the driver's version in its directories."""
        found = {name for folder in self.folders for name, all_ in self._versions(folder).items() if version in all_}
        return sorted(name for name in found - LISTED if name.startswith("lib") and name not in NEUTRAL)

    def first(self, name: str, version: str, notes: list[str]) -> tuple[str, str] | None:
        """Find a library's first undamaged file for this machine, version "" for any; returns its path and SONAME."""
        for path in dict.fromkeys(self.candidates(name, version)):
            try:
                return path, sonames.soname(rooted.inside(self.root, path), self.machine) or os.path.basename(path)
            except ForeignError:
                continue  # RHEL has 32-bit libraries in /usr/lib, others have the 64-bit ones there
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                _note(notes, rooted.inside(self.root, path), f"is left out: {reason}")
        return None

    def entries(self, capability: str, version: str, notes: list[str]) -> list[File]:
        """List a capability's libraries, as the snapshot has them."""
        named = [(name, version) for name in LIBRARIES.get(capability, ())]
        named += [(name, "") for name in OWN_VERSION.get(capability, ())]
        named += [(name, version) for name in self._unlisted(version) if capability in UNLISTED]
        found: dict[str, File] = {}
        for name, ending in named:
            chosen = self.first(name, ending, notes)
            if chosen:
                found[name] = {"path": chosen[0], "kind": self.kind, "soname": chosen[1]}
                links = self._links(name, *chosen)
                if links:
                    found[name]["links"] = links
        if "libEGL_nvidia.so" in found and "libnvidia-allocator.so" in found:
            # Not with the allocator: compute lists it too, and one entry of a path would hide the other.
            link = self._gbm_link(found["libnvidia-allocator.so"])
            found["libEGL_nvidia.so"].setdefault("links", []).append(link)
        return list(found.values())

    def _links(self, name: str, path: str, soname: str) -> list[str]:
        folder, file = os.path.split(path)
        links = []
        always, target = ALWAYS.get(name, ("", ""))
        if always and always != file:
            links.append(f"{file if target == 'file' else soname}::{folder}/{always}")
        # Other such links serve to link programs, and come only where the host has them.
        if name not in (soname, file, always) and rooted.resolve(self.root, f"{folder}/{name}") == path:
            links.append(f"{soname}::{folder}/{name}")
        if name in BELOW:  # programs look for this name one directory up
            above = os.path.dirname(folder)
            if rooted.resolve(self.root, f"{above}/{name}") == path:
                links.append(f"{os.path.basename(folder)}/{file}::{above}/{name}")
        return links

    def _gbm_link(self, allocator: File) -> str:
        path, beside = allocator["path"], os.path.dirname(allocator["path"])
        for folder in (beside, *self.folders):
            if rooted.resolve(self.root, f"{folder}/{GBM}") == path:
                break
        else:
            folder = beside
        return f"{path if folder != beside else '../' + allocator['soname']}::{folder}/{GBM}"


def directories(machine: str) -> list[str]:
    """List the directories where drivers have their libraries: Debian's, RHEL's (64 bits), all others', NixOS's."""
    if machine == "i386":
        usual: tuple[str, ...] = DIRS32
    else:
        triplet = f"{machine}-linux-gnu"
        usual = (f"/usr/lib/{triplet}", "/usr/lib64", "/lib64", "/usr/lib", "/lib", f"/lib/{triplet}")
    found = [folder + below for folder in usual for below in ("", "/nvidia/current", "/nvidia")]
    return [*found, NIXOS_DIRS.get(machine, "/run/opengl-driver/lib")]


def read_cache(root: str, notes: list[str]) -> bytes:
    """Read the root's ld.so.cache; an unusable one gives a note and b""."""
    path = rooted.resolve(root, CACHE)
    if path is None:
        notes.append("there is no ld.so.cache: the driver's libraries are sought in the usual directories only")
        return b""
    try:
        with open(rooted.inside(root, path), "rb", opener=rooted.nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            data = file.read(CACHE_LIMIT + 1)
        if len(data) > CACHE_LIMIT:
            raise ValueError("it is too large")
        if not data:
            raise ValueError("it is empty")
        return data
    except (OSError, ValueError) as error:
        _note(notes, rooted.inside(root, path), f"is not used: {getattr(error, 'strerror', None) or error}")
        return b""


def _note(notes: list[str], path: str, what: str) -> None:
    if f"{path} {what}" not in notes:  # the 32-bit libraries are sought in some of the same places
        notes.append(f"{path} {what}")


def _numbers(version: str) -> list[int]:
    return [int(digits[:18]) for digits in version.split(".") if digits]
