"""A simulated host as it is after a boot: its kernel, and neither libraries nor programs, which take a while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fakehost import gpus, kernel, tree

UVM_MAJOR, CAPS_MAJOR = 508, 237


class Boot:
    """`root` is the driver root and has proc/, sys/, an empty dev/ and a modprobe."""

    def __init__(self, root: Path, count: int = 2, mig: Any = None) -> None:
        self.root, self.proc = str(root), f"{root}/proc"
        self.gpus = gpus.describe(count, mig)
        tree.lay_out(self.root)
        tree.write_sys(self.root, self.gpus)
        self.drive()

    def drive(
        self, modify: int = 1, uid: int = 0, gid: int = 0, mode: int = 0o666, version: str = "535.183.01"
    ) -> None:
        """Load all modules, with these parameters."""
        majors = {"nvidia-uvm": UVM_MAJOR, "nvidia-caps": CAPS_MAJOR}
        tree.write_proc(self.root, self.gpus, version, version, majors, (modify, uid, gid, mode))

    def unload(self, *names: str) -> None:
        kernel.unload(self.root, names)

    @property
    def loads(self) -> list[str]:
        return kernel.loads(self.root)

    def nodes(self) -> dict[str, tuple[int, int, int, int, int]]:
        """Return path, major, minor, mode bits, uid and gid of what is in dev/, but for dev/char."""
        found = {}
        for folder, _, names in os.walk(f"{self.root}/dev"):
            for name in names if not folder.endswith("/char") else ():
                status = os.lstat(f"{folder}/{name}")
                path = f"{folder}/{name}"[len(self.root) :]
                numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
                found[path] = (*numbers, status.st_mode & 0o777, status.st_uid, status.st_gid)
        return found

    def links(self) -> dict[str, str]:
        folder = f"{self.root}/dev/char"
        return {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
