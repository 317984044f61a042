"""Find the libraries of a container's folder by their SONAMEs, as ldconfig(8) does.

The driver's libraries lie on mounts that the engine made, and that look like volumes: there only the SONAMEs of files
that everybody may read are read.

Out of scope: the loader's cache (finish.py). Not for the hot path: our own specs name each library.
"""

from __future__ import annotations

import posix

from gpuhook.finish.finish import SYSTEM_FOLDERS, Work
from gpuhook.finish.ldcache import compare
from gpuhook.nvidia.container import decode, encode
from gpushim.ground import bounds, elf
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.paths.mountinfo import mount_id


def libraries(work: Work, folder: str, machine: str) -> list[tuple[int, bytes, bytes]]:
    """Find the libraries of a folder, and make their SONAME links.

    In a folder where images have libraries of their own, only those count that lie on another mount than the rootfs:
    the cache has the others in its order already, and they may be meant to stand behind equal names elsewhere.

    Args:
        work: the container.
        folder: absolute path in it.
        machine: as uname(2) calls it.

    Returns:
        32 or 64, the name that programs load, and the path in the container; of one SONAME's files the newest alone.
    """
    path = "/" + folder.strip("/")
    try:
        names = work.root.names(path, bounds.FOLDER_NAMES, volumes=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        work.warn(path, error)
        return []
    every = encode(path) not in SYSTEM_FOLDERS
    count = 0
    files: dict[tuple[int, bytes], bytes] = {}
    for name in sorted(name for name, regular in names.items() if regular and _is_library(name)):
        known = _soname(work, f"{path}/{name}", machine, every)
        if known is None:
            continue
        count += 1
        if count > bounds.FOLDER_LIBRARIES:
            work.warn(path, GpushimError(f"there are more than {bounds.FOLDER_LIBRARIES} libraries", ROOTFS))
            break
        key, text = (known[0], known[1] or encode(name)), encode(name)
        if key not in files or compare(text + b"\0", 0, files[key] + b"\0") > 0:
            files[key] = text
    found = [(bits, soname, _link(work, path, soname, name, names)) for (bits, soname), name in files.items()]
    for name in sorted(name for name, regular in names.items() if not regular and _is_library(name)):
        known = _soname(work, f"{path}/{name}", machine, every)  # of what the link leads to, now that all are made
        if known and (known[0], encode(name)) not in files and len(found) < bounds.FOLDER_LIBRARIES:
            found.append((known[0], encode(name), encode(f"{path}/{name}")))
    return found


def _is_library(name: str) -> bool:
    return name.startswith("lib") and (name.endswith(".so") or ".so." in name) and "\n" not in name


def _soname(work: Work, path: str, machine: str, every: bool) -> tuple[int, bytes] | None:
    """Read what a file is; None for one that does not count. The text files of compilers are called *.so, too."""
    try:
        fd, facts = work.root.open(path, volumes=True)
        try:
            if not every and mount_id(fd) == work.root.mount:
                return None
            machines = [machine, elf.COMPANIONS.get(machine, "")]
            found, soname = elf.soname(lambda at, size: posix.pread(fd, size, at), facts.st_size, machines)
        finally:
            posix.close(fd)
    except (OSError, ValueError):
        return None
    odd = b"/" in soname or soname in (b".", b"..") or b"\n" in soname
    return 64 if found == machine else 32, b"" if odd else soname


def _link(work: Work, folder: str, soname: bytes, name: bytes, names: dict[str, bool]) -> bytes:
    """Make a SONAME link, unless a file has that name; return the path that the cache is to have."""
    place, own = encode(folder) + b"/", decode(soname)
    if soname == name or names.get(own):
        return place + name
    try:
        work.directory(folder).symlink(decode(name), own)
    except OSError as error:
        work.warn(f"{folder}/{own}", error)
        return place + name  # the cache can do without the link
    return place + soname
