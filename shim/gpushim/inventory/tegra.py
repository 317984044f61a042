"""Tegra (Jetson): NVIDIA's CSV files name the nodes and files that containers get.

One line is `type,path`, with the types dev, dir, lib and sym. This follows descriptions and is tested on fixture
trees, never on such a machine.
Out of scope: a discrete GPU beside the integrated one; CSV files other than LISTS, by which old releases mounted the
host's CUDA and cuDNN into containers.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from typing import TYPE_CHECKING

from gpushim.inventory import entries, sonames
from gpushim.paths import rooted
from gpushim.paths.rooted import is_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import File, Listed, Node, Platform

RELEASE = "/etc/nv_tegra_release"
FAMILY = "/sys/devices/soc0/family"
MODEL = "/proc/device-tree/model"
LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
TYPES = ("dev", "dir", "lib", "sym")
LIST_LIMIT = 1 << 20  # bytes of one CSV file; real ones have some 20 KiB
ENTRY_LIMIT = 4096  # nodes and files in all
PATH_LIMIT = 1024  # characters
NOTE_LIMIT = 32  # lines with a note of their own
_GLOB = "*?["


def find(root: str, dev_root: str, csv_directory: str, notes: list[str]) -> Platform | None:
    """Find what containers get on a Tegra system; None if this is none."""
    if not _is_tegra(root):
        return None
    lists = [path for path in (f"{csv_directory}/{name}" for name in LISTS) if is_file(root, path)]
    if not lists:
        notes.append(f"this is a Tegra system, but none of {', '.join(LISTS)} is in {csv_directory}")
        return None
    left_out: list[str] = []
    lines = dict.fromkeys(line for path in lists for line in _lines(root, path, left_out))
    nodes, found = _listed(root, dev_root, list(lines), left_out)
    notes += [f"left out of the Tegra CSV files: {line}" for line in left_out[:NOTE_LIMIT]]
    if left_out[NOTE_LIMIT:]:
        notes.append(f"left out of the Tegra CSV files: {len(left_out) - NOTE_LIMIT} more")
    watched = [rooted.inside(root, path) for path in (csv_directory, *lists)]
    return {
        "platform": "tegra",
        "nodes": nodes,
        "files": {"any": found},
        "watched": watched + [rooted.inside(dev_root, path) for path in nodes],
    }


def gpus(root: str, nodes: dict[str, Node]) -> Listed:
    """Return the one GPU of a Tegra system, which is named after its model."""
    model = _text(root, MODEL, 256).rstrip("\0\n ") or "Tegra"
    gpu = entries.gpu(0, next(iter(nodes), ""), model=model)
    return {"source": "proc", "version": "", "cuda": "", "gpus": [gpu], "mig": [], "missing": [], "absent": []}


def _listed(
    root: str, dev_root: str, lines: list[tuple[str, str]], left_out: list[str]
) -> tuple[dict[str, Node], list[File]]:
    """Find what the lines name; one list serves many boards, so what is missing gets no note."""
    nodes: dict[str, Node] = {}
    found: dict[str, File] = {}
    _add_file(root, RELEASE, found, left_out)
    for kind, pattern in lines:
        for path in _expand(dev_root if kind == "dev" else root, pattern):
            if len(nodes) + len(found) >= ENTRY_LIMIT:
                left_out.append(f"{path} and what follows: there are more than {ENTRY_LIMIT} nodes and files")
                return nodes, list(found.values())
            if kind == "dev":
                _add_node(dev_root, path, nodes, left_out)
            else:
                _add_file(root, path, found, left_out)
    return nodes, list(found.values())


def _is_tegra(root: str) -> bool:
    return is_file(root, RELEASE) or _text(root, FAMILY, 64).lower().startswith("tegra")


def _text(root: str, path: str, limit: int) -> str:
    """Read the beginning of a file; nothing if there is none."""
    real = rooted.resolve(root, path)
    if real is None:
        return ""
    try:
        with open(rooted.inside(root, real), "rb", opener=rooted.nonblocking) as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _lines(root: str, path: str, left_out: list[str]) -> Iterator[tuple[str, str]]:
    text = _text(root, path, LIST_LIMIT + 1)
    if len(text) > LIST_LIMIT:
        left_out.append(f"{path}: it is larger than {LIST_LIMIT >> 20} MiB")
        return
    for number, line in enumerate(text.splitlines(), 1):
        kind, comma, name = (part.strip() for part in line.partition(","))
        if (not kind and not comma) or kind.startswith("#"):
            continue
        parts = name.split("/")
        usable = kind in TYPES and name.startswith("/") and len(name) <= PATH_LIMIT and name.isprintable()
        if usable and not {".", ".."} & set(parts) and all(parts[1:]) and "::" not in name:
            yield kind, name
        else:
            left_out.append(f"{path}, line {number}: it is not one of {', '.join(TYPES)}, a comma and a path")


def _expand(root: str, pattern: str) -> list[str]:
    """List the paths that match; only the last component may be a pattern (/dev/dri/card*)."""
    folder, _, name = pattern.rpartition("/")
    if not any(letter in name for letter in _GLOB):
        return [pattern]
    return [f"{folder}/{one}" for one in rooted.listing(root, folder) if fnmatch.fnmatchcase(one, name)]


def _add_node(dev_root: str, path: str, nodes: dict[str, Node], left_out: list[str]) -> None:
    try:
        status = os.lstat(rooted.inside(dev_root, path))
    except OSError:
        return
    if not path.startswith("/dev/") or not stat.S_ISCHR(status.st_mode):
        left_out.append(f"{path}: it is not a character device below /dev")
        return
    nodes[path] = entries.node(status)


def _add_file(root: str, path: str, found: dict[str, File], left_out: list[str]) -> None:
    """Add what a path leads to, and the path itself as a link where it is one."""
    real = rooted.resolve(root, path)
    if real is None:
        return
    if real not in found:
        kind = rooted.kind(root, real)
        if kind == stat.S_IFDIR and real != "/":
            found[real] = {"path": real, "kind": "directory"}
        elif kind == stat.S_IFREG:
            found[real] = _file(root, real)
        else:
            left_out.append(f"{path}: it is neither a file nor a directory")
            return
    if path != real:
        found[real].setdefault("links", []).append(f"{real}::{path}")


def _file(root: str, path: str) -> File:
    """Tell libraries from programs and data, which lib lines also name and the loader's cache must not have."""
    host = rooted.inside(root, path)
    name = os.path.basename(host)
    if ".so" in name:
        try:
            return {"path": path, "kind": "library", "soname": sonames.soname(host) or name}
        except (OSError, ValueError):
            pass  # a linker script, or a library for another machine
    return {"path": path, "kind": "data"}
