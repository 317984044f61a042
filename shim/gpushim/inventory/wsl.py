"""WSL2: Windows' driver behind one node, /dev/dxg, and its libraries below /usr/lib/wsl.

Windows mounts both there: lib/ has what programs load, drivers/ (the "driver store") what those libraries load. One
node serves all GPUs, so a container cannot be limited to some. This follows descriptions and is tested on fixture
trees, never on such a machine.
Out of scope: MIG and CUDA forward compatibility, which WSL2 does not have.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from gpushim.inventory import entries, nvml, sonames
from gpushim.paths import rooted
from gpushim.paths.rooted import is_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushim.ground.model import File, Gpu, Listed, Platform

NODE = "/dev/dxg"
LIB = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers"
DXCORE = "libdxcore.so"
NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
LIBRARIES = {
    "any": (DXCORE,),
    "utility": (NVML,),
    "compute": (CUDA,),
    "video": ("libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-opticalflow.so.1"),
    "graphics": ("libnvoptix.so.1", "libnvoptix_loader.so.1", "libnvwgf2umx.so", "libd3d12.so", "libd3d12core.so"),
}
# What the libraries above load from the driver store, by its own path; there is a store for each adapter, and
# NVIDIA's have the first of these.
STORED = (
    "libcuda.so.1.1",
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
    "nvcubins.bin",
    "nvidia-smi",
)
STORE_LIMIT = 1024  # adapters, graphics and others; a laptop has three


def find(root: str, dev_root: str, notes: list[str]) -> Platform | None:
    """Find the node and the files of a WSL2 system; None if this is none."""
    node = rooted.inside(dev_root, NODE)
    try:
        status = os.lstat(node)
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    if not is_file(root, f"{LIB}/{DXCORE}"):
        notes.append(f"there is {node}, but no {rooted.inside(root, LIB)}/{DXCORE}: update WSL, if this is WSL2")
        return None
    return {
        "platform": "wsl",
        "nodes": {NODE: entries.node(status)},
        "files": _listed(root, notes),
        "watched": [node, rooted.inside(root, LIB), rooted.inside(root, STORE)],
    }


def gpus(root: str, notes: list[str], waiting: Callable[[str], None]) -> Listed:
    """Ask NVML for the GPUs; where it cannot be used, list one of which nothing is known."""
    found: Listed = {"source": "proc", "version": "", "cuda": "", "gpus": [], "mig": [], "missing": [], "absent": []}
    if not any(is_file(root, f"{LIB}/{name}") for name in (NVML, CUDA)):
        notes.append(f"there is neither {CUDA} nor {NVML} in {LIB}: install NVIDIA's driver in Windows")
        return found
    try:
        with nvml.session(rooted.inside(root, f"{LIB}/{NVML}"), waiting) as session:
            version, cuda = session.nvmlSystemGetDriverVersion(), nvml.cuda(session)
            gpus = [_gpu(session, index, waiting) for index in range(session.nvmlDeviceGetCount())]
            return {**found, "source": "nvml", "version": version, "cuda": cuda, "gpus": gpus}
    except nvml.UnusableError as error:
        notes.append(f"{error}: this system's GPUs are listed as one")
        return {**found, "gpus": [entries.gpu(0, NODE)]}


def _listed(root: str, notes: list[str]) -> dict[str, list[File]]:
    found: dict[str, list[File]] = {
        capability: [entry for name in names for entry in _library(root, f"{LIB}/{name}", notes)]
        for capability, names in LIBRARIES.items()
    }
    stores = [f"{STORE}/{name}" for name in rooted.listing(root, STORE)[:STORE_LIMIT]]
    stores = [store for store in stores if is_file(root, f"{store}/{STORED[0]}")]
    if not stores:
        notes.append(f"no directory below {STORE} has {STORED[0]}: CUDA will not find NVIDIA's driver")
    found["any"] += [
        {"path": f"{store}/{name}", "kind": "data"}
        for store in stores
        for name in STORED
        if is_file(root, f"{store}/{name}")
    ]
    for folder in (LIB, *stores):
        if is_file(root, f"{folder}/nvidia-smi"):
            link = f"{folder}/nvidia-smi::/usr/bin/nvidia-smi"
            found["utility"].append({"path": f"{folder}/nvidia-smi", "kind": "binary", "links": [link]})
            break
    return found


def _library(root: str, path: str, notes: list[str]) -> Iterator[File]:
    real = rooted.resolve(root, path)
    if real is None or rooted.kind(root, real) != stat.S_IFREG:
        return
    folder, _, name = path.rpartition("/")
    try:
        soname = sonames.soname(rooted.inside(root, real)) or name
    except (OSError, ValueError) as error:
        notes.append(f"{rooted.inside(root, real)} is left out: {getattr(error, 'strerror', None) or error}")
        return
    links = [f"{soname}::{folder}/libcuda.so"] if soname == CUDA else []  # programs dlopen that name too
    yield {"path": real, "kind": "library", "soname": soname, "links": links}


def _gpu(session: Any, index: int, waiting: Callable[[str], None]) -> Gpu:
    waiting(f"GPU {index} to answer NVML")
    handle = session.nvmlDeviceGetHandleByIndex(index)
    return entries.gpu(
        index,
        NODE,
        nvml=index,
        uuid=session.nvmlDeviceGetUUID(handle),
        model=session.nvmlDeviceGetName(handle),
        brand=nvml.brand(session, handle),
        arch=nvml.arch(session, handle),
        memory=nvml.memory(session, handle),
    )
