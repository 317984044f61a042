"""The driver's files that containers get: libraries, programs, firmware, sockets.

A library counts only if its file name ends with the version of the loaded kernel module: a container must never
get libraries of two versions. All paths are as seen inside the driver root, and links never lead out of it.
Out of scope: graphics, video and 32-bit files; what a container does with them (plan.py).
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

from gpushim.inventory import elf, ldcache_list

if TYPE_CHECKING:
    from collections.abc import Iterator

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
}
BINARIES = {
    "utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager"),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
}
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
TELLTALES = ("libcuda.so", "libnvidia-ml.so")  # one of them is there if the driver's libraries are
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBRARY_DIRS = (
    *(f"/usr/lib/{triplet}{below}" for triplet in _TRIPLETS for below in ("", "/nvidia/current")),
    *("/usr/lib64", "/lib64", "/usr/lib", "/lib"),
    *(f"/lib/{triplet}" for triplet in _TRIPLETS),
)
BINARY_DIRS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin")
CACHE_LIMIT = 64 << 20  # bytes; a crowded host has 0.3 MiB
LINK_LIMIT = 40  # as the kernel's MAXSYMLINKS


def find(root: str, version: str, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Find the files of each capability.

    Args:
        root: the driver root.
        version: of the loaded kernel module.
        notes: gets a sentence for each file that is there and of no use.

    Returns:
        capability ("any": every one of them) to a list of {"path", "kind", ...}, as the snapshot has them.
    """
    cached = cache(root, notes)
    found: dict[str, list[dict[str, Any]]] = {"any": _firmware(root, version)}
    for capability, names in LIBRARIES.items():
        found[capability] = [entry for name in names for entry in _library(root, name, version, cached, notes)]
    for capability, names in BINARIES.items():
        found[capability] += [entry for name in names for entry in _binary(root, name)]
    found["utility"] += _sockets(root)
    return found


def versions(root: str) -> list[str]:
    """List the versions of the driver's libraries that are installed below a root, the loader's own choice first."""
    found = []
    for name in TELLTALES:
        for path in _candidates(root, name, "", cache(root, [])):
            match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
            if match:
                found.append(match[1])
    return list(dict.fromkeys(found))


def library(root: str, name: str, version: str) -> str | None:
    """Find one library of a version; returns its path inside the root."""
    return next(_candidates(root, name, version, cache(root, [])), None)


def cache(root: str, notes: list[str]) -> list[tuple[str, str]]:
    """List what the root's ld.so.cache names; an unusable one gives a note and an empty list."""
    path = resolve(root, "/etc/ld.so.cache")
    if path is None:
        notes.append("there is no ld.so.cache: the driver's libraries are sought in the usual directories only")
        return []
    try:
        with open(inside(root, path), "rb", opener=_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            data = file.read(CACHE_LIMIT + 1)
        if len(data) > CACHE_LIMIT:
            raise ValueError("it is too large")
        return ldcache_list.libraries(data)
    except (OSError, ValueError) as error:
        notes.append(f"{inside(root, path)} is not used: {getattr(error, 'strerror', None) or error}")
        return []


def resolve(root: str, path: str) -> str | None:
    """Follow a path's links inside a root.

    Args:
        root: an absolute path; where "/" and the top of ".." are.
        path: an absolute path inside it.

    Returns:
        the path inside the root without any link, None if it leads nowhere.
    """
    done: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            here = "/".join((root.rstrip("/"), *done, part))
            try:
                is_link = stat.S_ISLNK(os.lstat(here).st_mode)
                target = os.readlink(here) if is_link else ""
            except OSError:
                return None
            if not is_link:
                done.append(part)
                continue
            links += 1
            if links > LINK_LIMIT:
                return None
            if target.startswith("/"):
                done.clear()
            todo += target.split("/")[::-1]
    return "/" + "/".join(done)


def inside(root: str, path: str) -> str:
    """Return the host's path of an absolute path inside a root."""
    return path if root == "/" else root + path


def _nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO must not hang us


def _is(root: str, path: str | None, kind: int) -> bool:
    """Tell whether a resolved path is of a kind (S_IFREG, S_IFSOCK) and not empty."""
    if path is None:
        return False
    try:
        status = os.lstat(inside(root, path))
    except OSError:
        return False
    return stat.S_IFMT(status.st_mode) == kind and (kind != stat.S_IFREG or status.st_size > 0)


def _candidates(root: str, name: str, version: str, cached: list[tuple[str, str]]) -> Iterator[str]:
    """List the real files of a library, e.g. libcuda.so: the cache's choices, then the usual directories'."""
    paths = [path for key, path in cached if key.startswith(name)]
    for folder in LIBRARY_DIRS:
        paths += [f"{folder}/{name}.{version}"] if version else [f"{folder}/{name}.1", f"{folder}/{name}"]
    for path in paths:
        real = resolve(root, path)
        if real and real.endswith("." + version if version else "") and _is(root, real, stat.S_IFREG):
            yield real


def _library(
    root: str, name: str, version: str, cached: list[tuple[str, str]], notes: list[str]
) -> Iterator[dict[str, Any]]:
    for path in dict.fromkeys(_candidates(root, name, version, cached)):
        try:
            soname = elf.soname(inside(root, path)) or os.path.basename(path)
        except (OSError, ValueError) as error:
            notes.append(f"{inside(root, path)} is left out: {getattr(error, 'strerror', None) or error}")
            continue
        entry = {"path": path, "kind": "library", "soname": soname}
        folder = os.path.dirname(path)
        # Programs that dlopen libcuda.so by that name find it where the driver's installer puts the link; other
        # such links are for linking, and come only where the host has them.
        if name != soname and (name == "libcuda.so" or resolve(root, f"{folder}/{name}") == path):
            entry["links"] = [f"{soname}::{folder}/{name}"]  # type: ignore[assignment]
        yield entry
        return


def _binary(root: str, name: str) -> Iterator[dict[str, Any]]:
    for folder in BINARY_DIRS:
        path = f"{folder}/{name}"
        real = resolve(root, path)
        if real and _is(root, real, stat.S_IFREG):
            yield _spelled(root, path, real, "binary")
            return


def _firmware(root: str, version: str) -> list[dict[str, Any]]:
    folder = f"/lib/firmware/nvidia/{version}"
    real = resolve(root, folder)
    try:
        names = sorted(os.listdir(inside(root, real))) if real else []
    except OSError:
        return []
    found = []
    for name in names:
        if name.startswith("gsp") and name.endswith(".bin"):
            target = resolve(root, f"{folder}/{name}")
            if target and _is(root, target, stat.S_IFREG):
                found.append(_spelled(root, f"{folder}/{name}", target, "firmware"))
    return found


def _spelled(root: str, path: str, real: str, kind: str) -> dict[str, Any]:
    """Keep the path that programs know (/usr/bin/nvidia-smi, /lib/firmware) where the kernel finds the same there.

    Where it does not, because a link is meant inside the driver root, the container gets the file and a link.
    """
    try:
        if os.path.samefile(inside(root, path), inside(root, real)):
            return {"path": path, "kind": kind}
    except OSError:
        pass
    return {"path": real, "kind": kind, "links": [f"{real}::{path}"]}


def _sockets(root: str) -> list[dict[str, Any]]:
    resolved = [resolve(root, path) or resolve(root, "/var" + path) for path in SOCKETS]
    return [{"path": path, "kind": "socket"} for path in resolved if _is(root, path, stat.S_IFSOCK)]
