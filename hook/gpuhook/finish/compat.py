"""Find out whether the image's newer libcuda is to be used: CUDA forward compatibility.

NVIDIA's cuda-compat packages put it into /usr/local/cuda/compat, with a note that tells the driver branches it
runs on. It is put first in the loader's cache, at its own place in the image: nothing is mounted or executed.
A folder that lies on a volume is left alone.

Out of scope: ELF (elf.py), writing the cache (ldcache.py, finish.py), whether a GPU model supports it (the
note's "Device" list has numbers without a public meaning; CUDA itself says so with error 804).

Hot path: builtin modules only; finish.py imports this for images that have the directory.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds, elf
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.ground.fastjson import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from gpushim.paths.rootfs import Rootfs

SECTION = b".note.cuda.fwd_compatibility"
OWNER = b"NVIDIA Corporation"


def choose(
    root: Rootfs, driver: str, cuda: str, warn: Callable[[str, Exception], None], folder: str
) -> list[tuple[str, str]]:
    """Decide whether the image's compatibility libraries come before the host driver's.

    With a note that lists driver branches, they do if the host's branch is among them and their version is higher
    than the host driver's. With a note that lists none, if its CUDA version is higher than the host's. Without
    a note, if their branch is higher. (These are the rules of NVIDIA's own hook, enable-cuda-compat.)

    Args:
        root: the container's rootfs.
        driver: version of the host's driver, e.g. 535.183.01, or "" if it is not known.
        cuda: CUDA version of the host's driver, e.g. 12.2, or "".
        warn: called with a place and an error for libraries that are there and cannot be judged.
        folder: where the image has them.

    Returns:
        (SONAME, path in the container) of each such library; empty if the host's are to be used.
    """
    place = folder
    try:
        names = root.names(folder, bounds.COMPAT_NAMES)
        found = [name for name, regular in names.items() if regular and len(_libcuda_version(name)) > 1]
        if not found:
            return []
        if len(found) > 1:
            raise GpushimError(f"{len(found)} files there are called libcuda.so.*.*, instead of one", ROOTFS)
        place = f"{folder}/{found[0]}"
        return _libraries(names, folder, found[0]) if _is_better(root, place, driver, cuda) else []
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, GpushimError) as error:
        warn(place, error)
        return []


def _libcuda_version(name: str) -> tuple[int, ...]:
    stem, _, rest = name.partition(".so.")
    return version(rest) if stem == "libcuda" else ()


def _is_better(root: Rootfs, path: str, driver: str, cuda: str) -> bool:
    host, ours = version(driver), _libcuda_version(path.rpartition("/")[2])
    fd, status = root.open(path)
    try:
        machine = posix.uname().machine
        text = elf.note(lambda at, size: posix.pread(fd, size, at), status.st_size, machine, SECTION, OWNER)
    finally:
        posix.close(fd)
    if text is None:
        return bool(host) and ours[0] > host[0]
    facts: Any = loads(text, f"the note in {path}")
    if not isinstance(facts, dict):
        raise ValueError("its note is not a JSON object")
    branches, wants = facts.get("Driver"), facts.get("CUDA Version")
    if host and isinstance(branches, list) and branches:
        return host[0] in branches and ours > host
    theirs = version(cuda)
    return isinstance(wants, str) and bool(theirs) and version(wants) > theirs


def _libraries(names: dict[str, bool], folder: str, libcuda: str) -> list[tuple[str, str]]:
    """Name the libraries as ldconfig(8) does, without reading each: most SONAMEs have one number behind .so."""
    parts = {name: name.partition(".so.") for name in names if name.startswith("lib")}
    short = [name for name, (_, _, rest) in parts.items() if name.endswith(".so") or len(version(rest)) == 1]
    linked = {parts[name][0] for name in short}
    # Some SONAMEs have the whole version; the file has no other name then.
    whole = [name for name, (stem, _, rest) in parts.items() if stem not in linked and len(version(rest)) > 1]
    found = {name: f"{folder}/{name}" for name in [*short, *whole]}
    found.setdefault("libcuda.so.1", f"{folder}/{libcuda}")
    if len(found) > bounds.COMPAT_LIBRARIES:
        raise GpushimError(f"there are more than {bounds.COMPAT_LIBRARIES} libraries", ROOTFS)
    return sorted(found.items())


def version(text: str) -> tuple[int, ...]:
    """Split a version into numbers; () if it is anything else than a few numbers and dots."""
    words = text.split(".") if len(text) < 64 else []
    if not all(word.isascii() and word.isdecimal() for word in words):
        return ()
    return tuple([int(word) for word in words])
