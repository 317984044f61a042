"""The driver's device nodes: those of /dev, checked against what the kernel says, and made where they are missing.

The kernel makes none for this driver: nvidia-modprobe does when a program first uses a GPU, and udev where it has
rules for it. A correct node keeps its mode and owner. IMEX channels are the administrator's to make.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from typing import TYPE_CHECKING

from gpushim.inventory import ensure, modules, procfs
from gpushim.inventory.earlier import instead
from gpushim.inventory.ensure import CAPS_DIR, CONTROL_NODES, GRANTED_CAPS, IMEX_CHANNEL, IMEX_DIR
from gpushim.paths import trust
from gpushim.paths.rooted import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpushim.ground.model import DriverPolicy, Node
    from gpushim.inventory.earlier import Hung

NODE_LIMIT = 8192  # nodes; a rack-scale host may have 2048 IMEX channels
# Where nodes of the driver and of related drivers are, and which names count there.
DIRECTORIES = (
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
# Minor numbers that every driver has: nv.h, nvidia-modeset-os-interface.h, uvm_linux.h.
CONTROL, MODESET, UVM, UVM_TOOLS = 255, 254, 0, 1
NEEDED = (ensure.CONTROL_NODE, ensure.UVM_NODES[0])
FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS)
CONTAINER = "/run/systemd/container"  # of systemd's, in a container
ENVIRONMENT_LIMIT = 1 << 16  # bytes of the first process's variables
FOLDER_MODE = 0o755

Expected = tuple[str, int, int, int, int, int]  # path in a container, major, minor, mode bits, uid, gid


def find(dev_root: str, proc: str, notes: list[str], drm: Iterable[str] = ()) -> dict[str, Node]:
    """List the device nodes, by path in a container, with these DRM nodes of the GPUs."""
    majors = procfs.majors(proc)
    nodes: dict[str, Node] = {}
    for path in [*_list_paths(dev_root, notes), *drm]:
        host = path if dev_root == "/" else dev_root + path
        try:
            status = os.lstat(host)
        except OSError:
            continue  # gone since it was listed
        if stat.S_ISDIR(status.st_mode):
            continue
        problem = _problem(path, status, majors)
        if problem:
            notes.append(f"{host} is left out: {problem}")
        else:
            nodes[path] = node(status)
    return nodes


def node(status: os.stat_result) -> Node:
    numbers = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    return [*numbers, status.st_mode & 0o777, status.st_uid, status.st_gid]


def features(nodes: dict[str, Node]) -> dict[str, list[str]]:
    return {feature: [path for path in nodes if pattern.fullmatch(path)] for feature, pattern in FEATURES.items()}


def imex_channels(nodes: dict[str, Node]) -> list[int]:
    return sorted(int(path[len(IMEX_CHANNEL) :]) for path in nodes if path.startswith(IMEX_CHANNEL))


def watched(nodes: dict[str, Node], in_use: list[str]) -> list[str]:
    """List the paths that a snapshot's stamp looks at.

    Channels and capability nodes, of which there may be thousands, are covered by their directory's time; only those
    `in_use` are listed, and a create looks at the channels that it grants.
    """
    plain = [path for path in nodes if path in GRANTED_CAPS or not path.startswith((CAPS_DIR + "/", IMEX_DIR + "/"))]
    return list(dict.fromkeys([*EXPECTED, *plain, *in_use]))


def _list_paths(dev_root: str, notes: list[str]) -> list[str]:
    paths: list[str] = []
    for folder, pattern in DIRECTORIES:
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


def owners(path: str, majors: dict[str, int]) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of the drivers that a node may belong to, and their major numbers.

    No names: the node is unknown. No numbers: none of these drivers is in `majors`, which `procfs.majors` returned.
    """
    for pattern, names in _OWNERS:
        if pattern.fullmatch(path):
            numbers = sorted({majors[name] for name in names if name in majors})
            return names, numbers or ([FRONTEND_MAJOR] if names is _FRONTEND else [])
    for pattern, name in _NEIGHBOURS:
        if name in majors and pattern.fullmatch(path):
            return (name,), [majors[name]]
    return (), []


def _problem(path: str, status: os.stat_result, majors: dict[str, int]) -> str:
    if not stat.S_ISCHR(status.st_mode):
        return "it is not a character device"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    names, right = owners(path, majors) if majors else ((), [])
    if names and not right:
        return f"the kernel has no driver {names[0]} loaded"
    if names and major not in right:
        return f"its major number is {major}, and {names[0]} has {right[0]}; remove it and make it again"
    number = re.fullmatch(r"/dev/nvidia(\d+)", path)
    if number and int(number[1]) != minor:
        return f"its minor number is {minor}; remove it and make it again"
    return ""


def withheld(path: str, driver: DriverPolicy) -> bool:
    """Return whether an outer layer (LXC, kind, a pod) has not given this host a node, though /proc shows all.

    Its device rules forbid to open the node, which access(2) tells without opening a GPU; or the node is missing,
    none is made here, and there is an outer layer. The nodes that every GPU needs are always this host's.
    """
    host = inside(driver["dev-root"], path)
    if path in NEEDED:
        return False
    if os.path.lexists(host):
        return os.geteuid() == 0 and not os.access(host, os.R_OK | os.W_OK)
    if driver["load-kernel-modules"]:
        return os.geteuid() == 0 and trust.in_user_namespace()
    return _is_inside()


def _is_inside() -> bool:
    """Return whether this host is a container, as of LXC or kind, by its first process's environment."""
    if trust.in_user_namespace() or os.path.exists(CONTAINER):
        return True
    try:
        with open("/proc/1/environ", "rb") as file:
            return b"\0container=" in b"\0" + file.read(ENVIRONMENT_LIMIT)
    except OSError:
        return False


def make(dev_root: str, proc: str, hung: Sequence[Hung] = ()) -> list[str]:
    """Make missing nodes and replace wrong ones, at a stat and a readlink per node; returns notes.

    /proc is not read for the GPUs in `hung`.
    """
    notes: list[str] = []
    links = os.geteuid() == 0 and not trust.in_user_namespace()
    for path, major, minor, mode, uid, gid in due(proc, hung):
        device = os.makedev(major, minor)
        host = inside(dev_root, path)
        try:
            if not _is_device(host, device):
                _replace(host, functools.partial(_mknod, device, mode, uid, gid))
            if links:
                _put_link(inside(dev_root, f"/dev/char/{major}:{minor}"), path, device)
        except OSError as error:
            if error.errno in FORBIDDEN:  # and so are the others
                notes.append(f"{host} or its link cannot be made here ({error.strerror}); refresh as the host's root")
                break
            notes.append(f"{host} or its link cannot be made: {error.strerror}")
    return notes


def link(dev_root: str, proc: str) -> list[str]:
    notes = []
    for host, path, device in missing_links(dev_root, proc):
        try:
            _put_link(host, path, device)
        except OSError as error:
            notes.append(f"{host} cannot be made: {error.strerror}")
    return notes


def missing_nodes(dev_root: str, proc: str) -> list[str]:
    """List the host's paths of the nodes that `make` would make or replace."""
    listed = [(inside(dev_root, path), os.makedev(major, minor)) for path, major, minor, *_ in due(proc)]
    return [host for host, device in listed if not _is_device(host, device)]


def missing_links(dev_root: str, proc: str) -> list[tuple[str, str, int]]:
    """List the links that `link` would make: path on the host, node in a container, device number."""
    links = []
    for path, (major, minor, *_) in find(dev_root, proc, []).items():
        host, device = inside(dev_root, f"/dev/char/{major}:{minor}"), os.makedev(major, minor)
        if not _is_linked(host, path, device):
            links.append((host, path, device))
    return links


def due(proc: str, hung: Sequence[Hung] = ()) -> Iterator[Expected]:
    """List the nodes that the loaded driver should have, without those that it forbids to change."""
    majors = procfs.majors(proc)
    attributes = procfs.device_files(proc)
    if not majors or not attributes or procfs.module_version(proc) is None:
        return
    minors = {ensure.CONTROL_NODE: CONTROL}
    minors.update((gpu["node"], gpu["minor"]) for gpu in procfs.gpus(proc, [], instead(hung)))
    if "nvidia-modeset" in majors or "nvidia_modeset" in (modules.loaded(proc) or ()):
        minors[ensure.MODESET_NODE] = MODESET
    minors.update(zip(ensure.UVM_NODES, (UVM, UVM_TOOLS)))
    for path, minor in minors.items():
        yield from ((path, major, minor, *attributes) for major in owners(path, majors)[1][:1])
    if "nvidia-caps" in majors:
        for minor, mode, may in procfs.capabilities(proc):
            if may:
                yield f"{CAPS_DIR}/nvidia-cap{minor}", majors["nvidia-caps"], minor, mode, 0, 0


def _is_device(host: str, device: int) -> bool:
    try:
        status = os.lstat(host)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == device


def _mknod(device: int, mode: int, uid: int, gid: int, path: str) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, device)
    os.chown(path, uid, gid)
    os.chmod(path, mode)  # the umask has cut mknod's


def _put_link(host: str, path: str, device: int) -> None:
    """Make the link by number that systemd before 240 and some releases of runc look for."""
    if not _is_linked(host, path, device):
        _replace(host, functools.partial(os.symlink, _target(path)))


def _target(path: str) -> str:
    return ".." + path[len("/dev") :]


def _is_linked(host: str, path: str, device: int) -> bool:
    try:
        return os.readlink(host) in (_target(path), path)
    except FileNotFoundError:
        return False
    except OSError:  # not a link
        return _is_device(host, device)


def _replace(host: str, make: Callable[[str], None]) -> None:
    folder, _, name = host.rpartition("/")
    if not os.path.isdir(folder):
        os.mkdir(folder)
        os.chmod(folder, FOLDER_MODE)
    fresh = f"{folder}/.{name}.gpushim"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)  # left by a refresh that was killed
    try:
        make(fresh)
        os.rename(fresh, host)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
