"""What the simulated host's kernel does by itself: modules that modprobe loads, and DRM nodes.

The modprobe is a script of the host's own, which works in a chroot there; it edits proc/ as the kernel would.
Out of scope: modules of other makers, and module parameters (tree.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from fakehost import tree
from fakehost.gpus import Gpu

# In the order in which one needs the other; the names of each in /proc/devices.
MODULES = {
    "nvidia": ("nvidia", "nvidia-frontend", "nvidiactl", "nvidia-caps", "nvidia-caps-imex-channels"),
    "nvidia_uvm": ("nvidia-uvm",),
    "nvidia_modeset": ("nvidia-modeset",),
}
STORE = "/usr/lib/fakehost"
BUSYBOX = "/bin/busybox"
LOG = f"{STORE}/modprobe.log"
BROKEN = f"{STORE}/broken"
SCRIPT = f"""#!{STORE}/busybox sh
b={STORE}/busybox store={STORE}/$1
echo "$*" >>{LOG}
$b test ! -e {BROKEN} || {{ echo "modprobe: ERROR: could not insert '$1': No such device" >&2; exit 1; }}
$b test -d $store || {{ echo "modprobe: FATAL: Module $1 not found in directory /lib/modules/6.1.0" >&2; exit 1; }}
$b test $1 = nvidia -o ! -d {STORE}/nvidia || "$0" nvidia
$b test ! -e $store/driver || {{ $b rm -rf /proc/driver; $b mv $store/driver /proc/driver; }}
$b cat $store/modules >>/proc/modules
{{ $b sed '/^$/,$d' /proc/devices; $b cat $store/devices; $b sed -n '/^$/,$p' /proc/devices; }} >/proc/devices.new
$b mv /proc/devices.new /proc/devices
$b rm -r $store
"""
# The display chip of a server's management controller: DRM nodes that are no GPU of ours.
OTHER_PCI = "0000:03:00.0"


def unload(root: str, names: Iterable[str]) -> None:
    """Take modules out of proc/, and leave a modprobe that brings them back.

    Args:
        root: the host's.
        names: keys of MODULES; without nvidia none of the others can be there.
    """
    gone = [name for name in MODULES if name in names or "nvidia" in names]
    shutil.rmtree(root + STORE, ignore_errors=True)
    os.makedirs(root + STORE)
    shutil.copy(BUSYBOX, f"{root}{STORE}/busybox")
    tree.write(f"{root}/usr/sbin/modprobe", SCRIPT, 0o755)
    for name in gone:
        os.mkdir(f"{root}{STORE}/{name}")
        _move_lines(f"{root}/proc/modules", f"{root}{STORE}/{name}/modules", 0, (name,))
        _move_lines(f"{root}/proc/devices", f"{root}{STORE}/{name}/devices", -1, MODULES[name])
    if "nvidia" in gone:
        os.rename(f"{root}/proc/driver", f"{root}{STORE}/nvidia/driver")
        os.makedirs(f"{root}/proc/driver/nvidia")  # by which gpushim knows that this proc/ is meant


def _move_lines(source: str, target: str, column: int, words: tuple[str, ...]) -> None:
    with open(source, encoding="ascii") as file:
        lines = file.readlines()
    ours = [line for line in lines if line.strip() and line.split()[column] in words]
    tree.write(target, "".join(ours))
    tree.write(source, "".join(line for line in lines if line not in ours))


def loads(root: str) -> list[str]:
    """Return what modprobe was asked for, in order."""
    try:
        with open(root + LOG, encoding="ascii") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def drm_names(gpu: Gpu, count: int) -> tuple[str, str]:
    """Return the names of a GPU's card and render node; their order is not that of the GPUs."""
    return f"card{count - gpu.index}", f"renderD{127 + count - gpu.index}"


def write_drm(root: str, dev_root: str, gpus: list[Gpu]) -> None:
    """Give every GPU, and a chip of another maker, nodes below dev/dri and entries below sys/."""
    base = f"{root}/sys/bus/pci/devices"
    tree.write(f"{base}/{OTHER_PCI}/vendor", "0x1a03\n")
    tree.write(f"{base}/{OTHER_PCI}/class", "0x030000\n")
    places = {OTHER_PCI: ("card0",), **{gpu.pci: drm_names(gpu, len(gpus)) for gpu in gpus}}
    kept = {f"{dev_root}/dev/dri/by-path"}
    for pci, names in places.items():
        for name in names:
            minor = int(name.lstrip("cardenD"))
            tree.write(f"{base}/{pci}/drm/{name}/dev", f"{tree.DRM_MAJOR}:{minor}\n")
            node = f"{dev_root}/dev/dri/{name}"
            link = f"{dev_root}/dev/dri/by-path/pci-{pci}-{'card' if name.startswith('card') else 'render'}"
            os.makedirs(os.path.dirname(link), exist_ok=True)
            tree.make_node(node, tree.DRM_MAJOR, minor, 0o660, 0, 44)
            if not os.path.islink(link) or os.readlink(link) != f"../{name}":
                tree.remove(link)
                os.symlink(f"../{name}", link)
            kept |= {node, link}
        tree.write(f"{base}/{pci}/drm/version", "drm 1.1.0 20060810\n")
    for folder in (f"{dev_root}/dev/dri", f"{dev_root}/dev/dri/by-path"):  # what stays keeps its directory's times
        for name in os.listdir(folder):
            if f"{folder}/{name}" not in kept:
                os.unlink(f"{folder}/{name}")
