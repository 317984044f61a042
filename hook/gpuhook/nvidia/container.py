"""Open a container for a hook that may run in the host's mount namespace or in the container's; find its libraries.

createContainer hooks run in the container's mount namespace before pivot_root(2): the host's files are still in
place, and the rootfs is at its path on the host. prestart and createRuntime hooks run in the host's, where the
container's mounts are behind /proc/<pid>/root. `process_of` tells which of the two it is.

The driver's libraries lie on mounts that the engine made, and that look like volumes: there only the SONAMEs of files
that everybody may read are read, as ldconfig(8) does. Not for the hot path.
"""

from __future__ import annotations

import posix
import sys

from gpuhook import prestart
from gpuhook.inject import roots
from gpuhook.inject.roots import rootfs_of
from gpuhook.loader.finish import SYSTEM_FOLDERS, Work, encode, skipped
from gpuhook.loader.ldcache import compare
from gpushim.ground import bounds, elf
from gpushim.ground.errors import ROOTFS, GpushimError, visible
from gpushim.ground.machines import COMPANIONS
from gpushim.paths.mountinfo import held, mount_id
from gpushim.paths.rootfs import Rootfs
from gpushim.paths.walk import REGULAR, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Container(Work):
    """A container whose skipped steps go to stderr, and whose folders stand beside those of its other hooks."""

    __slots__ = ()

    def __init__(self, root: Rootfs) -> None:
        super().__init__(root, "")

    def warn(self, step: str, error: Exception) -> None:
        prestart.say(skipped(step, error)[: bounds.LOG_TEXT])

    def name_folders(self, folders: list[bytes], keep: bool = True) -> None:
        super().name_folders(folders, keep)


def state_from(path: str) -> dict[str, Any]:
    """Read the container's state (OCI runtime-spec, State) from a file, or from stdin for `-`; it is not trusted.

    Raises:
        GpushimError: it does not come, or says that the container runs already.
    """
    if path == "-":
        state = prestart.read_object(0)
    else:
        try:
            fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY)
        except (OSError, ValueError) as error:
            name = visible(path)
            raise GpushimError(f"the container's state cannot be read from {name}: {error}", ROOTFS) from None
        try:
            if posix.fstat(fd).st_mode & TYPE != REGULAR:
                raise GpushimError(f"{visible(path)} is not a regular file", ROOTFS)
            state = prestart.read_object(fd)
        finally:
            posix.close(fd)
    if state.get("status") not in prestart.WAITING:
        raise GpushimError("the container's state says that it is past the stages of these hooks", ROOTFS)
    return state


def process_of(state: dict[str, Any]) -> str:
    """Return the directory of the container's process in /proc, held open; "" if we are in its mount namespace.

    The pid of a state counts from the runtime's own pid namespace. To a createContainer hook it is the container's,
    while /proc is still the host's and has another process under that number: nothing is looked up there until it
    is known that the number belongs there. It does not if there is none (crun gives 0 then), if it is our own
    parent's, which is the container's process in that stage alone, or if we have a number in a pid namespace
    below that of /proc ("NSpid" in proc(5)). Otherwise the two mount namespaces tell.

    Raises:
        GpushimError: its namespace cannot be looked at.
    """
    pid = state.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31 or pid == posix.getppid() or _is_nested():
        return ""
    try:
        process = held(pid)
        return "" if roots.same("/proc/self/ns/mnt", f"{process}/ns/mnt") else process
    except OSError as error:
        sentence = f"the mount namespace of the container's process cannot be looked at: {error.strerror}"
        raise GpushimError(sentence, ROOTFS) from None


def _is_nested() -> bool:
    fd = posix.open("/proc/self/status", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        text = posix.read(fd, 1 << 16)
    finally:
        posix.close(fd)
    return len(text.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()) > 1


def open_container(state: dict[str, Any]) -> Container:
    """Open the rootfs that the bundle names, where its mounts can be seen.

    Raises:
        GpushimError: there is none, or it is the root directory itself, or not the container's (roots.check).
    """
    root = roots.open_root(process_of(state), rootfs_of(state))
    if roots.is_host_root(root, *([f"{root.process}/root"] if root.process else [])):
        raise GpushimError("the container's rootfs is the host's own root directory", ROOTFS)
    roots.check(root)
    return Container(root)


def decode(path: bytes) -> str:
    """Return a path of the kernel's as a command line has it."""
    return path.decode(sys.getfilesystemencoding(), "surrogateescape")


def libraries(work: Work, folder: str, machine: str) -> list[tuple[int, bytes, bytes]]:
    """Find the libraries of a folder, and make their SONAME links.

    In a folder where images have libraries of their own, only those count that lie on another mount than the rootfs:
    the cache has the others in its order already, and they may be meant to stand behind equal names elsewhere.

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
    on_any_mount = encode(path) not in SYSTEM_FOLDERS
    count = 0
    files: dict[tuple[int, bytes], bytes] = {}
    for name in sorted(name for name, regular in names.items() if regular and _is_library(name)):
        library = _soname(work, f"{path}/{name}", machine, on_any_mount)
        if library is None:
            continue
        count += 1
        if count > bounds.FOLDER_LIBRARIES:
            work.warn(path, GpushimError(f"there are more than {bounds.FOLDER_LIBRARIES} libraries", ROOTFS))
            break
        key, encoded = (library[0], library[1] or encode(name)), encode(name)
        if key not in files or compare(encoded + b"\0", 0, files[key] + b"\0") > 0:
            files[key] = encoded
    entries = [(bits, soname, _link(work, path, soname, name, names)) for (bits, soname), name in files.items()]
    for name in sorted(name for name, regular in names.items() if not regular and _is_library(name)):
        # Of what the link leads to, now that all are made.
        library = _soname(work, f"{path}/{name}", machine, on_any_mount)
        if library and (library[0], encode(name)) not in files and len(entries) < bounds.FOLDER_LIBRARIES:
            entries.append((library[0], encode(name), encode(f"{path}/{name}")))
    return entries


def _is_library(name: str) -> bool:
    return name.startswith("lib") and (name.endswith(".so") or ".so." in name) and "\n" not in name


def _soname(work: Work, path: str, machine: str, on_any_mount: bool) -> tuple[int, bytes] | None:
    """Return a library's bits and SONAME; None for a file that is none, such as the text files of compilers called
    *.so.
    """
    try:
        fd, status = work.root.open(path, volumes=True)
        try:
            if not on_any_mount and mount_id(fd) == work.root.mount:
                return None
            machines = [machine, COMPANIONS.get(machine, "")]
            file_machine, soname = elf.soname(lambda at, size: posix.pread(fd, size, at), status.st_size, machines)
        finally:
            posix.close(fd)
    except (OSError, ValueError):
        return None
    odd = b"/" in soname or soname in (b".", b"..") or b"\n" in soname
    return 64 if file_machine == machine else 32, b"" if odd else soname


def _link(work: Work, folder: str, soname: bytes, name: bytes, names: dict[str, bool]) -> bytes:
    """Make a SONAME link, unless a file has that name; return the path that the cache is to have."""
    prefix, link = encode(folder) + b"/", decode(soname)
    if soname == name or names.get(link):
        return prefix + name
    try:
        work.directory(folder).symlink(decode(name), link)
    except OSError as error:
        work.warn(f"{folder}/{link}", error)
        return prefix + name  # the cache can do without the link
    return prefix + soname
