"""A FUSE file system that never answers."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


# Group 12: a create does not look into the rootfs, whatever it is.
@contextmanager
def silent(place: Path) -> Iterator[None]:
    """Mount a FUSE file system that never answers."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    assert not ctypes.CDLL(None).mount(b"silent", bytes(place), b"fuse", 0, options)
    try:
        yield
    finally:
        os.close(fd)  # whoever waits gets ENOTCONN
        subprocess.run(["/usr/bin/umount", "--lazy", str(place)], check=True)
