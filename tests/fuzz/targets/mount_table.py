"""mountinfo as the kernel writes it: every mount is found under its own name, whatever bytes that has."""

from __future__ import annotations

import re

from gpuhook.inject import devices
from gpushim.paths import mountinfo

LINE = b"%d 1 %d:%d / %s rw,relatime%s - %s dev rw\n"
ESCAPED = re.compile(rb"[ \t\n\\]")  # what show_mountinfo hands to seq_path (fs/proc_namespace.c)
TAGS = (b"", b" shared:5", b" master:3", b" shared:4 master:2")
TYPES = (b"tmpfs", b"proc", b"overlay", b"cgroup2")
LENGTH = 256


def seeds() -> list[bytes]:
    """Return names of mount points, each behind a byte that decides the rest of its line."""
    return [b" /dev\0!/a b\n\\x\0*/x - tmpfs", b"#/sys/fs/cgroup", b"!/a\rb\0&/\x0b\x0c\x1c\x85", b" /\\040"]


def one(data: bytes) -> None:
    """Write a table of mounts on these places, and read it."""
    names = [part for part in data.split(b"\0") if part]
    text = b"".join(_line(number, name) for number, name in enumerate(names))
    found = mountinfo.parse(text)
    assert [int(mount.id) for mount in found] == list(range(len(names)))
    for mount, name in zip(found, names):
        assert mount.type == TYPES[name[0] & 3]
        assert mount.shared == (b"", b"5", b"", b"4")[name[0] >> 2 & 3]
        assert mountinfo.unescaped(mount.point) == b"/" + name[1:]
        assert mountinfo.escaped(b"/" + name[1:]) == mount.point
    paths = [b"/" + name[1:] for name in names if name[0] & 3 == 3]
    listed = devices.list_directories(found, "2", "/x")
    assert [path.encode("utf-8", "surrogateescape") for path, _ in listed] == [path + b"/x" for path in paths]


def _line(number: int, name: bytes) -> bytes:
    place = b"/" + ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], name[1:])
    return LINE % (number, name[0], number, place, TAGS[name[0] >> 2 & 3], TYPES[name[0] & 3])
