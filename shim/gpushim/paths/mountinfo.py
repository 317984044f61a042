"""Read which mounts a process sees: mountinfo (proc(5)).

Out of scope: whose they are (roots.py). Hot path: builtin modules only.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.paths.walk import read_proc

_ESCAPED = {b"\\": b"\\134", b" ": b"\\040", b"\t": b"\\011", b"\n": b"\\012"}  # the backslash first


class Mount:
    """A line of mountinfo.

    Only major:minor tells which file systems are the same: on btrfs and overlayfs the st_dev of files is another.

    Args:
        line: of the file, without its end.
    """

    __slots__ = ("device", "groups", "id", "options", "parent", "place", "root", "shared", "type")

    def __init__(self, line: bytes) -> None:
        words = line.split(b" ")
        end = words.index(b"-", 6)
        self.id, self.parent, self.device, self.root, self.place = words[:5]
        self.type, self.options = words[end + 1], words[-1]  # those of the file system
        tags = dict([word.partition(b":")[::2] for word in words[6:end]])
        self.shared = tags.get(b"shared", b"")  # the group of peers to which its mounts propagate
        self.groups = [tags[name] for name in (b"shared", b"master") if name in tags]  # those whose mounts it gets


def read(process: str) -> bytes:
    """Read the mounts that a process sees.

    Args:
        process: its directory in /proc, or "" for the caller.

    Raises:
        OSError: the process has ended, or sees more mounts than any kernel allows (EFBIG).
    """
    return read_proc(f"{process or '/proc/self'}/mountinfo", bounds.MOUNT_TABLE)


def parse(data: bytes) -> list[Mount]:
    """List the mounts; only a newline ends a line, for the kernel writes a carriage return in a name as it is."""
    return [Mount(line) for line in data.split(b"\n") if line]


def find(data: bytes, mount: bytes) -> Mount | None:
    """Find one mount by its id, without reading the others; None if it is not there."""
    start = b"%s " % mount
    at = 0 if data.startswith(start) else data.find(b"\n" + start) + 1
    return Mount(data[at : data.find(b"\n", at)]) if data.startswith(start, at) else None


def escaped(path: bytes) -> bytes:
    """Spell a path as mountinfo does."""
    for byte, escape in _ESCAPED.items():
        path = path.replace(byte, escape)
    return path


def unescaped(path: bytes) -> bytes:
    """Undo `escaped`."""
    for byte, escape in reversed(list(_ESCAPED.items())):
        path = path.replace(escape, byte)
    return path
