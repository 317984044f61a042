"""Mounts by /proc: the one that an open file lies on, and those that a process sees (proc(5), mountinfo).

Hot path: builtin modules only.
"""

from __future__ import annotations

import posix
from errno import EFBIG, EINVAL, EXDEV

from gpushim.ground import bounds
from gpushim.paths.walk import os_error

_ESCAPED = {b"\\": b"\\134", b" ": b"\\040", b"\t": b"\\011", b"\n": b"\\012"}  # the backslash first


class OtherMountError(OSError):
    """A path leads to another mount than the rootfs: the user's or the host's."""

    def __init__(self, path: str) -> None:
        super().__init__(EXDEV, "lies on another mount than the rootfs and is left alone", path)


class Mount:
    """A line of mountinfo, without its end.

    Only major:minor tells which file systems are the same: on btrfs and overlayfs the st_dev of files is another.
    """

    __slots__ = ("device", "groups", "id", "options", "parent", "point", "root", "shared", "type")

    def __init__(self, line: bytes) -> None:
        words = line.split(b" ")
        end = words.index(b"-", 6)
        self.id, self.parent, self.device, self.root, self.point = words[:5]
        self.type, self.options = words[end + 1], words[-1]  # those of the file system
        tags = dict([word.partition(b":")[::2] for word in words[6:end]])
        self.shared = tags.get(b"shared", b"")  # the group of peers to which its mounts propagate
        self.groups = [tags[name] for name in (b"shared", b"master") if name in tags]  # those whose mounts it gets


def mount_id(fd: int) -> bytes:
    """Return the id of the mount that `fd` lies on (proc(5), fdinfo); no other mount has it while `fd` is open.

    Raises:
        OSError: there is no /proc, or the kernel is older than 3.15.
    """
    info = posix.open(f"/proc/self/fdinfo/{fd}", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        words = posix.read(info, 4096).partition(b"mnt_id:")[2].split(None, 1)
    finally:
        posix.close(info)
    if not words:
        raise os_error(EINVAL, "/proc/self/fdinfo")
    return words[0]


def held(pid: int, proc: str = "/proc") -> str:
    """Open a process's directory in procfs, and return the path /proc/self/fd/N that leads through it.

    Names looked up there are that process's, or fail once it has ended: a process that gets its number has another
    directory.

    Raises:
        OSError: there is no such process.
    """
    return f"/proc/self/fd/{posix.open(f'{proc}/{pid}', posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)}"


def read_proc(path: str, limit: int) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        return read_all(fd, limit, path)
    finally:
        posix.close(fd)


def read_all(fd: int, limit: int, path: str, piece: int = 1 << 16) -> bytes:
    """Read to the end; the kernel gives a mount table in pieces of 4 KiB, of which there may be thousands.

    Raises:
        OSError: there are more than `limit` bytes (EFBIG): a cut table would be read wrongly.
    """
    parts, remaining = [], limit
    while part := posix.read(fd, piece):
        parts.append(part)
        remaining -= len(part)
        if remaining < 0:
            raise os_error(EFBIG, path)
    return b"".join(parts)


def read(process: str) -> bytes:
    """Read the mounts that a process sees, by its directory in /proc; "" is the caller.

    Raises:
        OSError: the process has ended, or sees more mounts than any kernel allows (EFBIG).
    """
    return read_proc(f"{process or '/proc/self'}/mountinfo", bounds.MOUNT_TABLE)


def parse(data: bytes) -> list[Mount]:
    """Parse mountinfo; only a newline ends a line, as the kernel writes a carriage return in a name as it is."""
    return [Mount(line) for line in data.split(b"\n") if line]


def find(data: bytes, mount: bytes) -> Mount | None:
    start = b"%s " % mount
    at = 0 if data.startswith(start) else data.find(b"\n" + start) + 1
    return Mount(data[at : data.find(b"\n", at)]) if data.startswith(start, at) else None


def escaped(path: bytes) -> bytes:
    for byte, escape in _ESCAPED.items():
        path = path.replace(byte, escape)
    return path


def unescaped(path: bytes) -> bytes:
    for byte, escape in reversed(list(_ESCAPED.items())):
        path = path.replace(escape, byte)
    return path
