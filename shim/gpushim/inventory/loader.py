"""The host's loader: its ld.so.cache, the directories of libraries, the SONAME of a file.

A library is looked up in the root's ld.so.cache, then in the usual directories, for hosts without a cache (NixOS,
musl, driver containers). The cache's layouts are glibc's (sysdeps/generic/dl-cache.h): the new one, alone or behind
the old one, in this machine's byte order.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from typing import TYPE_CHECKING

from gpushim.ground import elf
from gpushim.ground.elf import ForeignError
from gpushim.ground.machines import CACHE_ABIS, triplet
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterator

BELOW = {"libvdpau_nvidia.so": "/vdpau"}  # where programs look for a library, in a directory that no loader searches
TELLTALES = ("libcuda.so", "libnvidia-ml.so")  # one of them is there if the driver's libraries are
DIRS32 = ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib", "/lib32", "/lib/i386-linux-gnu", "/lib")
NIXOS_DIR = "/run/opengl-driver/lib"
NIXOS_DIRS = {"i386": "/run/opengl-driver-32/lib"}
CACHE = "/etc/ld.so.cache"
CACHE_LIMIT = 64 << 20  # bytes; a crowded host has 0.3 MiB
NEW_MAGIC = b"glibc-ld.so.cache1.1"
OLD_MAGIC = b"ld.so-1.7.0"
OLD_HEADER, OLD_ENTRY = 16, 12  # bytes; the count is at offset 12
NEW_HEADER, NEW_ENTRY = 48, 24
NAME_LIMIT = 4096  # bytes of a name or a path (PATH_MAX)
# Flags of an entry: the library's ABI, and in the low byte its type. ldconfig gives FLAG_ELF to 32-bit libraries that
# do not ask for libc themselves, CACHE_LIBC6 to all others.
FLAG_ELF, ABI_MASK = 1, 0xFF00


class Loader:
    """The libraries that a machine's loader has in a root, by its cache (`data`) and in the usual directories.

    Attributes:
        machine: as uname names it, or "i386".
        cached: paths in the ld.so.cache by name such as "libcuda.so", for names with one of the `beginnings`.
        folders: the usual directories that are there, without links.
        kind: of the snapshot's entries.
    """

    __slots__ = ("_listed", "_real", "cached", "folders", "kind", "machine", "root")

    def __init__(
        self, root: str, machine: str, data: bytes, notes: list[str], beginnings: tuple[bytes, ...] = (b"",)
    ) -> None:
        self.root = root
        self.machine = machine or platform.machine()
        self.kind = "library32" if self.machine == "i386" else "library"
        self.cached: dict[str, list[str]] = {}
        try:
            for key, path in libraries(data, self.machine, beginnings) if data else ():
                self.cached.setdefault(key[: key.find(".so") + 3], []).append(path)
        except ValueError as error:
            _add_note(notes, rooted.inside(root, CACHE), f"is not used: {error}")
        self._listed: dict[str, dict[str, list[str]]] = {}  # of directories: libraries, versions
        self._real: dict[str, str | None] = {}  # directories without links
        resolved = (rooted.resolve(root, folder) for folder in directories(self.machine))
        self.folders = [folder for folder in dict.fromkeys(resolved) if folder]

    def settle(self, version: str) -> None:
        """Add the directories of the driver's main libraries, which the cache or a link may have elsewhere."""
        paths = [path for name in TELLTALES for path in self.candidates(name, version)]
        self.folders = list(dict.fromkeys([*(os.path.dirname(path) for path in paths), *self.folders]))

    def candidates(self, name: str, version: str) -> Iterator[str]:
        """List the files of a library, links followed, the loader's choice first; version "" for any."""
        for path in self._spellings(name, version):
            real = self._regular_file(path)
            if real and (not version or real.endswith("." + version)):
                yield real

    def _regular_file(self, path: str) -> str | None:
        """Return a path's regular file, links followed, or None; a directory's links are followed only once."""
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
        for below in self._search_path(name):
            if version:
                yield f"{below}/{name}.{version}"
            else:
                yield from (f"{below}/{name}.1", f"{below}/{name}")
        for folder in () if version else self.folders:  # without ldconfig there may be no link
            endings = filter(None, self.versions(folder).get(name, ()))
            yield from (f"{folder}/{name}.{ending}" for ending in sorted(endings, key=_numbers, reverse=True))

    def _search_path(self, name: str) -> Iterator[str]:
        for folder in self.folders:
            if name in BELOW:
                yield folder + BELOW[name]
            yield folder

    def versions(self, folder: str) -> dict[str, list[str]]:
        """Return the versions of each library in a directory, by the file names; "" for a linker's name."""
        if folder not in self._listed:
            self._listed[folder] = {}
            for file in rooted.listing(self.root, folder):
                stem, dot, ending = file.partition(".so.")
                if (ending or (not dot and file.endswith(".so"))) and not ending.strip("0123456789."):
                    self._listed[folder].setdefault(stem.removesuffix(".so") + ".so", []).append(ending)
        return self._listed[folder]

    def names(self, name: str, path: str) -> list[str]:
        spellings = []
        store = rooted.resolve(self.root, NIXOS_DIRS.get(self.machine, NIXOS_DIR)) or ""  # a copy of all, in links
        for below in self._search_path(name):
            if store and below.startswith(store):
                continue
            for ending in self.versions(below).get(name, ()):
                spelling = f"{below}/{name}.{ending}".rstrip(".")
                if spelling != path and rooted.resolve(self.root, spelling) == path:
                    spellings.append(spelling)
        return spellings

    def first(self, name: str, version: str, notes: list[str]) -> tuple[str, str] | None:
        """Return path and SONAME of a library's first undamaged file for this machine; version "" for any."""
        for path in dict.fromkeys(self.candidates(name, version)):
            try:
                return path, soname(rooted.inside(self.root, path), self.machine) or os.path.basename(path)
            except ForeignError:
                continue  # RHEL has 32-bit libraries in /usr/lib, others have the 64-bit ones there
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                _add_note(notes, rooted.inside(self.root, path), f"is left out: {reason}")
        return None


def directories(machine: str) -> list[str]:
    """List the directories of a driver's libraries: Debian's, RHEL's (64 bits), all others', NixOS's."""
    if machine == "i386":
        usual: tuple[str, ...] = DIRS32
    else:
        name = triplet(machine)
        usual = (f"/usr/lib/{name}", "/usr/lib64", "/lib64", "/usr/lib", "/lib", f"/lib/{name}")
    paths = [folder + below for folder in usual for below in ("", "/nvidia/current", "/nvidia")]
    return [*paths, NIXOS_DIRS.get(machine, NIXOS_DIR)]


def read_cache(root: str, notes: list[str]) -> bytes:
    """Read the root's ld.so.cache; b"", with a note, if it cannot be used."""
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
        _add_note(notes, rooted.inside(root, path), f"is not used: {getattr(error, 'strerror', None) or error}")
        return b""


def _add_note(notes: list[str], path: str, predicate: str) -> None:
    if f"{path} {predicate}" not in notes:  # the 32-bit libraries are sought in some of the same places
        notes.append(f"{path} {predicate}")


def _numbers(version: str) -> list[int]:
    return [int(digits[:18]) for digits in version.split(".") if digits]


def libraries(cache: bytes, machine: str = "", beginnings: tuple[bytes, ...] = (b"",)) -> list[tuple[str, str]]:
    """List SONAME and path of a cache's libraries for a machine, in the cache's order.

    Raises:
        ValueError: it is not a cache in the new layout, or it is damaged.
    """
    abi = CACHE_ABIS.get(machine or platform.machine(), 0)
    try:
        start = _new_layout(cache)
        (count,) = struct.unpack_from("=I", cache, start + len(NEW_MAGIC))
        table = cache[start + NEW_HEADER : start + NEW_HEADER + count * NEW_ENTRY]
        if len(table) != count * NEW_ENTRY:
            raise ValueError(f"it says {count} entries, and ends before the last")
        return [
            (_text(cache, start + key), _text(cache, start + value))
            for flags, key, value, _version, _hwcap in struct.iter_unpack("=iIIIQ", table)
            if flags & FLAG_ELF
            and flags & ABI_MASK == abi
            and (cache.startswith(beginnings, start + key) or start + key >= len(cache))
        ]
    except struct.error:
        raise ValueError("it ends within its header") from None


def _new_layout(cache: bytes) -> int:
    start = 0
    if cache.startswith(OLD_MAGIC):
        (count,) = struct.unpack_from("=I", cache, 12)
        start = (OLD_HEADER + count * OLD_ENTRY + 7) & ~7  # the new header is aligned to 8
    if not cache.startswith(NEW_MAGIC, start):
        raise ValueError("it has no new-layout header")
    return start


def _text(cache: bytes, offset: int) -> str:
    end = cache.find(b"\0", offset, offset + NAME_LIMIT)
    if end < 0:
        raise ValueError(f"no string ends behind offset {offset}")
    return cache[offset:end].decode("utf-8", "surrogateescape")


def soname(path: str, machine: str = "") -> str:
    """Return a library's SONAME, "" if it has none; `machine` is one of machines.ELF, "" for this one.

    Raises:
        ForeignError: it is for another machine.
        ValueError: it is no ELF library, or damaged.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0, opener=rooted.nonblocking) as file:

        def read(offset: int, length: int) -> bytes:
            if offset:  # a FIFO, which cannot seek, is refused for its first bytes
                file.seek(offset)
            return file.read(length)

        size = os.fstat(file.fileno()).st_size
        _, name = elf.soname(read, size, [machine or platform.machine()], program=True)
    if b"/" in name:
        raise ValueError("its SONAME is a path")
    return name.decode("ascii", "strict")
