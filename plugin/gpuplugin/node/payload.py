"""What an image brings for a node: a tree as packaging/install makes it, read whole before the node is entered.

Out of scope: laying it down (lay.py).
"""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass, replace

from gpushim.ground.errors import GpushimError

LIB = "/usr/lib/gpushim/"
WHOLE = "whole"  # last file of a version's directory
CONFIG = "/etc/gpushim/config.toml"
# Of the units that one alone: `gpushim refresh --keep` does the work of the others, and the plugin runs in a pod.
UNIT = "/usr/lib/systemd/system/gpushim-mps@.service"
UNITS = ("/usr/lib/systemd/", "/usr/lib/udev/", "/usr/lib/sysusers.d/")


@dataclass(frozen=True)
class File:
    mode: int
    data: bytes


@dataclass(frozen=True)
class Payload:
    """All of it.

    Attributes:
        files: by their paths on the node, in the order in which they are laid down.
        root: of the driver, which config.toml is to have; "" leaves that as it is.
    """

    version: str
    files: dict[str, File]
    root: str = ""

    @property
    def lib(self) -> str:
        """The directory of this version, with a slash at its end."""
        return f"{LIB}{self.version}/"


def read(folder: str, root: str = "") -> Payload:
    """Read a payload.

    Raises:
        GpushimError: there is none.
    """
    versions = glob.glob(f"{glob.escape(folder)}{LIB}*/{WHOLE}")
    if len(versions) != 1:
        raise GpushimError(f"{folder} has no version of gpushim for nodes; use the image as it was built")
    files = {}
    for place, names, leaves in os.walk(folder):
        if "__pycache__" in names:
            names.remove("__pycache__")
        for leaf in leaves:
            path = f"{place}/{leaf}"
            with open(path, "rb") as file:
                files[path[len(folder) :]] = File(os.fstat(file.fileno()).st_mode & 0o777, file.read())
    included = [path for path in files if path == UNIT or not path.startswith(UNITS)]
    if root:
        files[CONFIG] = replace(files[CONFIG], data=_rooted(files[CONFIG].data, root))
    return Payload(versions[0].split("/")[-2], {path: files[path] for path in sorted(included, key=_order)}, root)


def shell(folder: str) -> str:
    """Return the shell functions by which packages are removed, and `leave`, which has the script that stays.

    Args:
        folder: absolute path of the payload, which they lie beside; no directory can be read later (host.enter).
    """
    texts = []
    for name in ("written.sh", "removed"):
        with open(f"{os.path.dirname(folder)}/{name}", encoding="ascii") as file:
            texts.append(file.read())
    return f"DPKG_ROOT=\n{texts[0]}\nleave() {{ leave_script <<'END'\n{texts[1]}END\n}}\n"


def _rooted(config: bytes, root: str) -> bytes:
    """Return a config.toml, as the package has it, that says where the driver is."""
    head = b"[driver]\n"
    assert config.count(head) == 1
    return config.replace(head, head + f"root = {json.dumps(root)}\n".encode())


def _order(path: str) -> tuple[int, str]:
    """The version's directory comes first, its last file as the last of it, and programs come after all else."""
    if path.startswith(LIB):
        return (1 if path.endswith(f"/{WHOLE}") else 0), path
    return (3 if path.startswith("/usr/bin/") else 2), path
