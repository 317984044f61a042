"""Read the files that an image has for a node, a tree made by packaging/install, before the node is entered.

Out of scope: writing them (node_files.py).
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
# The only unit for nodes: `gpushim refresh --keep` does the work of the others, and the plugin runs in a pod.
UNIT = "/usr/lib/systemd/system/gpushim-mps@.service"
UNITS = ("/usr/lib/systemd/", "/usr/lib/udev/", "/usr/lib/sysusers.d/")


@dataclass(frozen=True)
class File:
    mode: int
    data: bytes


@dataclass(frozen=True)
class Payload:
    """All files for a node.

    Attributes:
        files: by their paths on the node, in the order in which they are written.
        root: of the driver, for config.toml; "" keeps its root.
    """

    version: str
    files: dict[str, File]
    root: str = ""

    @property
    def lib(self) -> str:
        """The directory of this version, with a slash at its end."""
        return f"{LIB}{self.version}/"


def read_payload(folder: str, root: str = "") -> Payload:
    """Read a payload.

    Raises:
        GpushimError: there is no payload.
    """
    versions = glob.glob(f"{glob.escape(folder)}{LIB}*/{WHOLE}")
    if len(versions) != 1:
        raise GpushimError(f"{folder} has no version of gpushim for nodes; use the image as it was built")
    files = {}
    for directory, names, file_names in os.walk(folder):
        if "__pycache__" in names:
            names.remove("__pycache__")
        for file_name in file_names:
            path = f"{directory}/{file_name}"
            with open(path, "rb") as file:
                files[path[len(folder) :]] = File(os.fstat(file.fileno()).st_mode & 0o777, file.read())
    included = [path for path in files if path == UNIT or not path.startswith(UNITS)]
    if root:
        files[CONFIG] = replace(files[CONFIG], data=_set_driver_root(files[CONFIG].data, root))
    return Payload(versions[0].split("/")[-2], {path: files[path] for path in sorted(included, key=_sort_key)}, root)


def read_shell(folder: str) -> str:
    """Return the shell functions that remove packages, and `leave`, which writes the script that stays.

    They lie beside the payload's directory, and cannot be read after host.enter.
    """
    texts = []
    for name in ("written.sh", "removed"):
        with open(f"{os.path.dirname(folder)}/{name}", encoding="ascii") as file:
            texts.append(file.read())
    return f"DPKG_ROOT=\n{texts[0]}\nleave() {{ leave_script <<'END'\n{texts[1]}END\n}}\n"


def _set_driver_root(config: bytes, root: str) -> bytes:
    head = b"[driver]\n"
    assert config.count(head) == 1
    return config.replace(head, head + f"root = {json.dumps(root)}\n".encode())


def _sort_key(path: str) -> tuple[int, str]:
    """Return the position of a file: first the version's directory, with `whole` last, and programs last of all."""
    if path.startswith(LIB):
        return (1 if path.endswith(f"/{WHOLE}") else 0), path
    return (3 if path.startswith("/usr/bin/") else 2), path
