"""The driver's device nodes: what /dev has, checked against what the kernel says.

Out of scope: making nodes (make_nodes.py), which DRM nodes are a GPU's (drm.py), who gets them (plan.py).
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from gpushim.inventory import entries
from gpushim.inventory.ensure import CAPS_DIR, CONTROL_NODES, GRANTED_CAPS, IMEX_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Node

NODE_LIMIT = 8192  # nodes; a rack-scale host may have 2048 IMEX channels
# Where nodes of the driver and of related drivers are, and which names count there.
PLACES = (
    ("/dev", re.compile(r"nvidia.*|gdrdrv")),
    (CAPS_DIR, re.compile(r"nvidia-cap\d+")),
    (IMEX_DIR, re.compile(r"channel\d+")),
    ("/dev/infiniband", re.compile(r"uverbs\d+|rdma_cm")),
)
# Nodes and directories that make a snapshot stale when they appear or vanish; they need not exist.
EXPECTED = (
    *CONTROL_NODES,
    "/dev/nvidia-nvswitchctl",
    "/dev/nvidia-fs0",
    "/dev/gdrdrv",
    CAPS_DIR,
    IMEX_DIR,
    "/dev/infiniband",
    "/dev/dri",
    "/dev/dri/by-path",
)
FEATURES = {
    "gds": re.compile(r"/dev/nvidia-fs\d+"),
    "mofed": re.compile(r"/dev/infiniband/.+"),
    "gdrcopy": re.compile(r"/dev/gdrdrv"),
    "nvswitch": re.compile(r"/dev/nvidia-nvswitch(ctl|\d+)"),
}
# The driver that owns a node, by its names in /proc/devices, which differ between generations.
_FRONTEND = ("nvidia", "nvidia-frontend", "nvidiactl", "nvidia-modeset")
_OWNERS = (
    (re.compile(r"/dev/nvidia(\d+|ctl|-modeset)"), _FRONTEND),
    (re.compile(r"/dev/nvidia-uvm(-tools)?"), ("nvidia-uvm",)),
    (re.compile(CAPS_DIR + "/.+"), ("nvidia-caps",)),
    (re.compile(IMEX_DIR + "/.+"), ("nvidia-caps-imex-channels",)),
    (re.compile("/dev/dri/.+"), ("drm",)),
)
# Nodes of separate modules, whose names may differ: checked only if /proc/devices has the name.
_NEIGHBOURS = (
    (FEATURES["gds"], "nvidia-fs"),
    (FEATURES["gdrcopy"], "gdrdrv"),
    (FEATURES["nvswitch"], "nvidia-nvswitch"),
)
FRONTEND_MAJOR = 195  # registered with the kernel (Documentation/admin-guide/devices.txt)


def find(dev_root: str, proc: str, notes: list[str], drm: Iterable[str] = ()) -> dict[str, Node]:
    """Find the device nodes, by path in a container; `drm` are the paths of the GPUs' DRM nodes."""
    known = majors(proc)
    found: dict[str, Node] = {}
    for path in [*_listed(dev_root, notes), *drm]:
        host = path if dev_root == "/" else dev_root + path
        try:
            status = os.lstat(host)
        except OSError:
            continue  # gone since it was listed
        if stat.S_ISDIR(status.st_mode):
            continue
        problem = _problem(path, status, known)
        if problem:
            notes.append(f"{host} is left out: {problem}")
        else:
            found[path] = entries.node(status)
    return found


def features(nodes: dict[str, Node]) -> dict[str, list[str]]:
    """Sort the nodes of related drivers by the feature that a container asks for."""
    return {feature: [path for path in nodes if pattern.fullmatch(path)] for feature, pattern in FEATURES.items()}


def imex_channels(nodes: dict[str, Node]) -> list[int]:
    """List the numbers of the IMEX channels among the nodes, in order."""
    prefix = IMEX_DIR + "/channel"
    return sorted(int(path[len(prefix) :]) for path in nodes if path.startswith(prefix))


def watched(nodes: dict[str, Node], more: list[str]) -> list[str]:
    """List the paths that a snapshot's stamp looks at.

    For channels and capability nodes, of which there may be thousands, their directory's time tells what comes and
    goes; those in use are in `more`, and a create looks at the channels that it grants.
    """
    plain = [path for path in nodes if path in GRANTED_CAPS or not path.startswith((CAPS_DIR + "/", IMEX_DIR + "/"))]
    return list(dict.fromkeys([*EXPECTED, *plain, *more]))


def _listed(dev_root: str, notes: list[str]) -> list[str]:
    paths: list[str] = []
    for folder, pattern in PLACES:
        try:
            names = os.listdir(folder if dev_root == "/" else dev_root + folder)
        except OSError:
            continue
        paths += sorted((f"{folder}/{name}" for name in names if pattern.fullmatch(name)), key=_by_number)
    if len(paths) > NODE_LIMIT:
        notes.append(f"of {len(paths)} device nodes only {NODE_LIMIT} are listed")
    return paths[:NODE_LIMIT]


def _by_number(path: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d{0,9})", path, re.DOTALL)
    return (match[1], int(match[2] or -1)) if match else (path, -1)


def majors(proc: str) -> dict[str, int]:
    """Read the character devices of /proc/devices: lines of a number and a name, up to the block devices."""
    try:
        with open(proc + "/devices", encoding="ascii", errors="replace") as file:
            text = file.read(1 << 16)
    except OSError:
        return {}
    rows = [line.split() for line in text.partition("Block devices:")[0].splitlines()]
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit() and len(row[0]) < 10}


def owners(path: str, known: dict[str, int]) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of the drivers that a node may belong to, and their major numbers.

    No names: the node is unknown. No numbers: none of these drivers is in `known`, which `majors` returned.
    """
    for pattern, names in _OWNERS:
        if pattern.fullmatch(path):
            numbers = sorted({known[name] for name in names if name in known})
            return names, numbers or ([FRONTEND_MAJOR] if names is _FRONTEND else [])
    for pattern, name in _NEIGHBOURS:
        if name in known and pattern.fullmatch(path):
            return (name,), [known[name]]
    return (), []


def _problem(path: str, status: os.stat_result, known: dict[str, int]) -> str:
    if not stat.S_ISCHR(status.st_mode):
        return "it is not a character device"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    names, right = owners(path, known) if known else ((), [])
    if names and not right:
        return f"the kernel has no driver {names[0]} loaded"
    if names and major not in right:
        return f"its major number is {major}, and {names[0]} has {right[0]}; remove it and make it again"
    number = re.fullmatch(r"/dev/nvidia(\d+)", path)
    if number and int(number[1]) != minor:
        return f"its minor number is {minor}; remove it and make it again"
    return ""
