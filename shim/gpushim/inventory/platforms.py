"""Systems whose GPUs are not PCI cards under NVIDIA's kernel module: WSL2 and Tegra (Jetson).

WSL2 has Windows' driver behind one node, /dev/dxg, which serves all GPUs, so a container cannot be limited to some.
Windows mounts its libraries below /usr/lib/wsl: lib/ has what programs load, drivers/ (the "driver store") what those
libraries load. On Tegra, NVIDIA's CSV files name the nodes and files that containers get; one line is `type,path`.
This follows descriptions and is tested on fixture trees, never on such a machine. CSV files other than LISTS are
not read: old releases mounted the host's CUDA and cuDNN into containers by them.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import stat
from typing import TYPE_CHECKING, Any

from gpushim.inventory import loader, nvml, procfs
from gpushim.inventory.nodes import node
from gpushim.paths import rooted
from gpushim.paths.rooted import is_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushim.ground.model import DriverPolicy, File, Gpu, Listed, Node, Platform


# WSL2.
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
# Tegra.
RELEASE = "/etc/nv_tegra_release"
FAMILY = "/sys/devices/soc0/family"
MODEL = "/proc/device-tree/model"
LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
TYPES = ("dev", "dir", "lib", "sym")
LIST_LIMIT = 1 << 20  # bytes of one CSV file; real ones have some 20 KiB
ENTRY_LIMIT = 4096  # nodes and files in all
PATH_LIMIT = 1024  # characters
NOTE_LIMIT = 32  # lines with a note of their own
NOTHING = "match nothing on this system"  # in the note about lines; one list serves many boards
_GPUS_OWN = (
    "gpu",
    "/dev/nvidia",
)  # in the paths of nodes by which programs reach the GPU: nvhost-gpu, nvgpu/, nvidia0
_GLOB = "*?["


def find(driver: DriverPolicy, notes: list[str]) -> Platform | None:
    """Return the nodes and files of WSL2 or Tegra; None, after a stat and two short reads, on other systems."""
    root, dev_root = driver["root"], driver["dev-root"]
    return wsl(root, dev_root, notes) or tegra(root, dev_root, driver["csv-directory"], notes)


def gpus(system: Platform, root: str, notes: list[str], waiting: Callable[[str], None]) -> Listed:
    if system["platform"] == "wsl":
        return wsl_gpus(root, notes, waiting)
    return tegra_gpus(root, system["nodes"], notes)


def wsl(root: str, dev_root: str, notes: list[str]) -> Platform | None:
    path = rooted.inside(dev_root, NODE)
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    if not is_file(root, f"{LIB}/{DXCORE}"):
        notes.append(f"there is {path}, but no {rooted.inside(root, LIB)}/{DXCORE}: update WSL, if this is WSL2")
        return None
    return {
        "platform": "wsl",
        "nodes": {NODE: node(status)},
        "files": _wsl_files(root, notes),
        "watched": [path, rooted.inside(root, LIB), rooted.inside(root, STORE)],
    }


def wsl_gpus(root: str, notes: list[str], waiting: Callable[[str], None]) -> Listed:
    """List the GPUs by NVML; where that cannot be used, one of which nothing is known."""
    listed = procfs.listed_none()
    if not any(is_file(root, f"{LIB}/{name}") for name in (NVML, CUDA)):
        notes.append(f"there is neither {CUDA} nor {NVML} in {LIB}: install NVIDIA's driver in Windows")
        return listed
    try:
        with nvml.session(rooted.inside(root, f"{LIB}/{NVML}"), waiting) as session:
            version, cuda = session.nvmlSystemGetDriverVersion(), nvml.cuda(session, None)
            entries = [_read_gpu(session, index, waiting) for index in range(session.nvmlDeviceGetCount())]
            return {**listed, "source": "nvml", "version": version, "cuda": cuda, "gpus": entries}
    except nvml.UnusableError as error:
        notes.append(f"{error}: this system's GPUs are listed as one")
        return {**listed, "gpus": [procfs.unknown(0, NODE)]}


def _wsl_files(root: str, notes: list[str]) -> dict[str, list[File]]:
    files: dict[str, list[File]] = {
        capability: [entry for name in names for entry in _library_entry(root, f"{LIB}/{name}", notes)]
        for capability, names in LIBRARIES.items()
    }
    stores = [f"{STORE}/{name}" for name in rooted.listing(root, STORE)[:STORE_LIMIT]]
    stores = [store for store in stores if is_file(root, f"{store}/{STORED[0]}")]
    if not stores:
        notes.append(f"no directory below {STORE} has {STORED[0]}: CUDA will not find NVIDIA's driver")
    files["any"] += [
        {"path": f"{store}/{name}", "kind": "data"}
        for store in stores
        for name in STORED
        if is_file(root, f"{store}/{name}")
    ]
    for folder in (LIB, *stores):
        if is_file(root, f"{folder}/nvidia-smi"):
            link = f"{folder}/nvidia-smi::/usr/bin/nvidia-smi"
            files["utility"].append({"path": f"{folder}/nvidia-smi", "kind": "binary", "links": [link]})
            break
    return files


def _library_entry(root: str, path: str, notes: list[str]) -> Iterator[File]:
    real = rooted.resolve(root, path)
    if real is None or rooted.kind(root, real) != stat.S_IFREG:
        return
    folder, _, name = path.rpartition("/")
    try:
        soname = loader.soname(rooted.inside(root, real)) or name
    except (OSError, ValueError) as error:
        notes.append(f"{rooted.inside(root, real)} is left out: {getattr(error, 'strerror', None) or error}")
        return
    links = [f"{soname}::{folder}/libcuda.so"] if soname == CUDA else []  # programs dlopen that name too
    yield {"path": real, "kind": "library", "soname": soname, "links": links}


def _read_gpu(session: Any, index: int, waiting: Callable[[str], None]) -> Gpu:
    waiting(f"GPU {index} to answer NVML")
    return nvml.gpu(session, index, session.nvmlDeviceGetHandleByIndex(index), NODE)


def tegra(root: str, dev_root: str, csv_directory: str, notes: list[str]) -> Platform | None:
    if not is_tegra(root):
        return None
    lists = [path for path in (f"{csv_directory}/{name}" for name in LISTS) if is_file(root, path)]
    if not lists:
        notes.append(f"this is a Tegra system, but none of {', '.join(LISTS)} is in {csv_directory}")
        return None
    left_out: list[str] = []
    lines = dict.fromkeys(line for path in lists for line in _read_lines(root, path, left_out))
    absent: list[str] = []
    nodes, files = _tegra_listed(root, dev_root, list(lines), left_out, absent)
    if absent:
        suffix = f" and {len(absent) - NOTE_LIMIT} more" if absent[NOTE_LIMIT:] else ""
        notes.append(f"lines of the Tegra CSV files that {NOTHING}: {', '.join(absent[:NOTE_LIMIT])}{suffix}")
    notes += [f"left out of the Tegra CSV files: {line}" for line in left_out[:NOTE_LIMIT]]
    if left_out[NOTE_LIMIT:]:
        notes.append(f"left out of the Tegra CSV files: {len(left_out) - NOTE_LIMIT} more")
    watched = [rooted.inside(root, path) for path in (csv_directory, *lists)]
    return {
        "platform": "tegra",
        "nodes": nodes,
        "files": {"any": files},
        "watched": watched + [rooted.inside(dev_root, path) for path in nodes],
    }


def tegra_gpus(root: str, nodes: dict[str, Node], notes: list[str]) -> Listed:
    """List the one GPU of a Tegra system, which is named after its model."""
    model = _read_text(root, MODEL, 256).rstrip("\0\n ") or "Tegra"
    gpu: Gpu = {**procfs.unknown(0, next(iter(nodes), "")), "model": model}
    if problem := tegra_problem(nodes):
        gpu["problem"] = problem
        notes.append(problem)
    return {**procfs.listed_none(), "gpus": [gpu]}


def tegra_problem(nodes: dict[str, Node]) -> str:
    if any(word in path for path in nodes for word in _GPUS_OWN):
        return ""
    return (
        "GPU 0 has no device node: no line of the Tegra CSV files leads to one (/dev/nvhost-gpu, /dev/nvgpu/*/*, "
        "/dev/nvidia0); correct devices.csv, then run gpushim refresh"
    )


def _tegra_listed(
    root: str, dev_root: str, lines: list[tuple[str, str]], left_out: list[str], absent: list[str]
) -> tuple[dict[str, Node], list[File]]:
    """Return the nodes and files of CSV lines; `absent` gets lines without any, as a list serves many boards."""
    nodes: dict[str, Node] = {}
    files: dict[str, File] = {}
    _add_file(root, RELEASE, files, left_out)
    for kind, pattern in lines:
        paths = _expand(dev_root if kind == "dev" else root, pattern)
        absent += [] if paths else [pattern]
        for path in paths:
            if len(nodes) + len(files) >= ENTRY_LIMIT:
                left_out.append(f"{path} and what follows: there are more than {ENTRY_LIMIT} nodes and files")
                return nodes, list(files.values())
            if kind == "dev":
                _add_node(dev_root, path, nodes, left_out)
            else:
                _add_file(root, path, files, left_out)
    return nodes, list(files.values())


def is_tegra(root: str) -> bool:
    return is_file(root, RELEASE) or _read_text(root, FAMILY, 64).lower().startswith("tegra")


def _read_text(root: str, path: str, limit: int) -> str:
    real = rooted.resolve(root, path)
    if real is None:
        return ""
    try:
        with open(rooted.inside(root, real), "rb", opener=rooted.nonblocking) as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_lines(root: str, path: str, left_out: list[str]) -> Iterator[tuple[str, str]]:
    text = _read_text(root, path, LIST_LIMIT + 1)
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
    """List the existing paths that match, ENTRY_LIMIT and one at most.

    Any component may be a pattern (/dev/nvgpu/*/power), which does not match a name that begins with a dot. A link
    is not followed out of the root.
    """
    paths = [""]
    for part in pattern.split("/")[1:]:
        if any(letter in part for letter in _GLOB):
            listed = (f"{folder}/{name}" for folder in paths for name in rooted.listing(root, folder or "/"))
            matches = (path for path in listed if _matches(path.rpartition("/")[2], part))
            paths = list(itertools.islice(matches, ENTRY_LIMIT + 1))
        else:
            paths = [f"{folder}/{part}" for folder in paths]
    return [path for path in paths if rooted.resolve(root, path) and rooted.kind(root, rooted.resolve(root, path))]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (not name.startswith(".") or pattern.startswith("."))


def _add_node(dev_root: str, path: str, nodes: dict[str, Node], left_out: list[str]) -> None:
    try:
        status = os.lstat(rooted.inside(dev_root, path))
    except OSError:
        return
    if not path.startswith("/dev/") or not stat.S_ISCHR(status.st_mode):
        left_out.append(f"{path}: it is not a character device below /dev")
        return
    nodes[path] = node(status)


def _add_file(root: str, path: str, files: dict[str, File], left_out: list[str]) -> None:
    real = rooted.resolve(root, path)
    if real is None:
        return
    if real not in files:
        kind = rooted.kind(root, real)
        if kind == stat.S_IFDIR and real != "/":
            files[real] = {"path": real, "kind": "directory"}
        elif kind == stat.S_IFREG:
            files[real] = _file_entry(root, real)
        else:
            left_out.append(f"{path}: it is neither a file nor a directory")
            return
    if path != real:
        files[real].setdefault("links", []).append(f"{real}::{path}")


def _file_entry(root: str, path: str) -> File:
    """Return a file's entry: a library if it is one for this machine, else data, as lib lines name both."""
    host = rooted.inside(root, path)
    name = os.path.basename(host)
    if ".so" in name:
        try:
            return {"path": path, "kind": "library", "soname": loader.soname(host) or name}
        except (OSError, ValueError):
            pass  # a linker script, or a library for another machine
    return {"path": path, "kind": "data"}
