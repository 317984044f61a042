"""Find out whether the image's newer libcuda is to be used: CUDA forward compatibility.

NVIDIA's cuda-compat packages put it into /usr/local/cuda/compat, with a note that tells the driver branches it
runs on. It is put first in the loader's cache, at its own path in the image: nothing is mounted or executed.
A folder that lies on a volume is left alone.

Out of scope: whether a GPU model supports it (the note's "Device" list has numbers without a public meaning; CUDA
itself says so with error 804).

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
    """Return the compatibility libraries to use as (SONAME, path in the container): none where the host's are better.

    With a note that lists driver branches, they come first if the host's branch is among them and their version is
    higher than the host driver's. With a note that lists none, if its CUDA version is higher than the host's. Without
    a note, if their branch is higher. (These are the rules of NVIDIA's own hook, enable-cuda-compat.)

    Args:
        driver: version of the host's driver, e.g. 535.183.01, or "" if it is not known.
        cuda: CUDA version of the host's driver, e.g. 12.2, or "".
        warn: called with a path and an error for libraries that are there and cannot be judged.
        folder: where the image has them.
    """
    path = folder
    try:
        names = root.names(folder, bounds.COMPAT_NAMES)
        files = [name for name, regular in names.items() if regular and len(_libcuda_version(name)) > 1]
        if not files:
            return []
        if len(files) > 1:
            raise GpushimError(f"{len(files)} files there are called libcuda.so.*.*, instead of one", ROOTFS)
        path = f"{folder}/{files[0]}"
        return _libraries(names, folder, files[0]) if _is_better(root, path, driver, cuda) else []
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, GpushimError) as error:
        warn(path, error)
        return []


def _libcuda_version(name: str) -> tuple[int, ...]:
    library, _, suffix = name.partition(".so.")
    return version(suffix) if library == "libcuda" else ()


def _is_better(root: Rootfs, path: str, driver: str, cuda: str) -> bool:
    host, image = version(driver), _libcuda_version(path.rpartition("/")[2])
    fd, status = root.open(path)
    try:
        machine = posix.uname().machine
        text = elf.note(lambda at, size: posix.pread(fd, size, at), status.st_size, machine, SECTION, OWNER)
    finally:
        posix.close(fd)
    if text is None:
        return bool(host) and image[0] > host[0]
    fields: Any = loads(text, f"the note in {path}")
    if not isinstance(fields, dict):
        raise ValueError("its note is not a JSON object")
    branches, needed = fields.get("Driver"), fields.get("CUDA Version")
    if host and isinstance(branches, list) and branches:
        return host[0] in branches and image > host
    host_cuda = version(cuda)
    return isinstance(needed, str) and bool(host_cuda) and version(needed) > host_cuda


def _libraries(names: dict[str, bool], folder: str, libcuda: str) -> list[tuple[str, str]]:
    """Name the libraries as ldconfig(8) does, without reading each: most SONAMEs have one number behind .so."""
    splits = {name: name.partition(".so.") for name in names if name.startswith("lib")}
    linkable = [name for name, (_, _, suffix) in splits.items() if name.endswith(".so") or len(version(suffix)) == 1]
    linked = {splits[name][0] for name in linkable}
    # Some SONAMEs have the whole version; the file has no other name then.
    unlinked = [
        name for name, (library, _, suffix) in splits.items() if library not in linked and len(version(suffix)) > 1
    ]
    paths = {name: f"{folder}/{name}" for name in [*linkable, *unlinked]}
    paths.setdefault("libcuda.so.1", f"{folder}/{libcuda}")
    if len(paths) > bounds.COMPAT_LIBRARIES:
        raise GpushimError(f"there are more than {bounds.COMPAT_LIBRARIES} libraries", ROOTFS)
    return sorted(paths.items())


def version(text: str) -> tuple[int, ...]:
    """Split a version into numbers; return () if it is anything else than a few numbers and dots."""
    words = text.split(".") if len(text) < 64 else []
    if not all(word.isascii() and word.isdecimal() for word in words):
        return ()
    return tuple([int(word) for word in words])
