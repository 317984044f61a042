"""Make the driver's device nodes that are missing or wrong, and links to them below /dev/char.

The kernel makes none for this driver: nvidia-modprobe does when a program first uses a GPU, and udev where it has
rules for it. A correct node keeps its mode and owner.
Out of scope: IMEX channels, which the administrator makes; nodes of other drivers; DRM nodes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from typing import TYPE_CHECKING

from gpushim.inventory import ensure, modules, nodes, procfs
from gpushim.inventory.hung import instead
from gpushim.paths import trust
from gpushim.paths.rooted import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpushim.inventory.hung import Hung

# Minor numbers that every driver has: nv.h, nvidia-modeset-os-interface.h, uvm_linux.h.
CONTROL, MODESET, UVM, UVM_TOOLS = 255, 254, 0, 1
FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS)
FOLDER_MODE = 0o755

Expected = tuple[str, int, int, int, int, int]  # path in a container, major, minor, mode bits, uid, gid


def make(dev_root: str, proc: str, hung: Sequence[Hung] = ()) -> list[str]:
    """Make what is missing and replace what is wrong, at a stat and a readlink per node; returns notes.

    Of the GPUs in `hung`, /proc is not read.
    """
    notes: list[str] = []
    links = os.geteuid() == 0 and not trust.in_user_namespace()
    for path, major, minor, mode, uid, gid in expected(proc, hung):
        device = os.makedev(major, minor)
        host = inside(dev_root, path)
        try:
            if not _is_device(host, device):
                _put(host, functools.partial(_mknod, device, mode, uid, gid))
            if links:
                _link(inside(dev_root, f"/dev/char/{major}:{minor}"), path, device)
        except OSError as error:
            if error.errno in FORBIDDEN:  # and so are the others
                notes.append(f"{host} or its link cannot be made here ({error.strerror}); refresh as the host's root")
                break
            notes.append(f"{host} or its link cannot be made: {error.strerror}")
    return notes


def link(dev_root: str, proc: str) -> list[str]:
    """Make the missing links below /dev/char to the driver's nodes, but no nodes; returns notes."""
    notes = []
    for host, path, device in missing_links(dev_root, proc):
        try:
            _link(host, path, device)
        except OSError as error:
            notes.append(f"{host} cannot be made: {error.strerror}")
    return notes


def missing_nodes(dev_root: str, proc: str) -> list[str]:
    """List the nodes that `make` would make or replace, as paths on the host."""
    listed = [(inside(dev_root, path), os.makedev(major, minor)) for path, major, minor, *_ in expected(proc)]
    return [host for host, device in listed if not _is_device(host, device)]


def missing_links(dev_root: str, proc: str) -> list[tuple[str, str, int]]:
    """List the links that `link` would make: path on the host, path of the node in a container, device number."""
    found = []
    for path, (major, minor, *_) in nodes.find(dev_root, proc, []).items():
        host, device = inside(dev_root, f"/dev/char/{major}:{minor}"), os.makedev(major, minor)
        if not _is_linked(host, path, device):
            found.append((host, path, device))
    return found


def expected(proc: str, hung: Sequence[Hung] = ()) -> Iterator[Expected]:
    """List the nodes that the loaded driver should have, without those that it forbids to change."""
    known = nodes.majors(proc)
    given = procfs.device_files(proc)
    if not known or not given or procfs.module_version(proc) is None:
        return
    named = {ensure.CONTROL_NODE: CONTROL}
    named.update((gpu["node"], gpu["minor"]) for gpu in procfs.gpus(proc, [], instead(hung)))
    if "nvidia-modeset" in known or "nvidia_modeset" in (modules.loaded(proc) or ()):
        named[ensure.MODESET_NODE] = MODESET
    named.update(zip(ensure.UVM_NODES, (UVM, UVM_TOOLS)))
    for path, minor in named.items():
        yield from ((path, major, minor, *given) for major in nodes.owners(path, known)[1][:1])
    if "nvidia-caps" in known:
        for minor, mode, may in procfs.capabilities(proc):
            if may:
                yield f"{ensure.CAPS_DIR}/nvidia-cap{minor}", known["nvidia-caps"], minor, mode, 0, 0


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


def _link(host: str, path: str, device: int) -> None:
    """Make the link by number that systemd before 240 and some releases of runc look for."""
    if not _is_linked(host, path, device):
        _put(host, functools.partial(os.symlink, _target(path)))


def _target(path: str) -> str:
    return ".." + path[len("/dev") :]


def _is_linked(host: str, path: str, device: int) -> bool:
    try:
        return os.readlink(host) in (_target(path), path)
    except FileNotFoundError:
        return False
    except OSError:  # not a link
        return _is_device(host, device)


def _put(host: str, make: Callable[[str], None]) -> None:
    """Make a file under another name, and rename it when it is complete."""
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
