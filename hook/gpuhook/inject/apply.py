"""Put a plan's edits into a container that is created but not started: the second way for edits to land.

The container's process waits in its own mount namespace, with its mounts made and its rootfs still at the
host's path. Device nodes and files of the driver are bind-mounted there, rules go to its cgroup. What a created
process cannot be given any more (variables, groups) is the engine's.
"""

from __future__ import annotations

import posix

from gpuhook.inject import mountpoints, mounts, roots
from gpushim.ground.errors import INVENTORY, ROOTFS, GpushimError
from gpushim.oci.edits import FILE_OPTIONS, NODE_OPTIONS, Edit
from gpushim.paths.mountinfo import OtherMountError
from gpushim.paths.walk import CHARACTER, DIRECTORY, REGULAR, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from gpushim.paths.rootfs import Rootfs

    Source = tuple[str, int, posix.stat_result]  # path on the host, O_PATH fd, what it is


def apply_edits(edits: list[Edit], root: Rootfs, dev_root: str, warn: Callable[[str, Exception], None]) -> None:
    """Give a created container its device nodes, rules and files; what is there already is left alone.

    Args:
        edits: as the docstring of gpushim.oci.edits describes them; env and hook are left to others.
        dev_root: absolute path of the directory that the host's nodes lie below.
        warn: takes what was skipped, and the error.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    mountpoints.check_namespace(root)
    roots.check(root)
    mount_ids = {mount.id for mount in roots.own_mounts(root)}
    binds = []
    for edit in edits:
        kind, value = edit.kind, edit.value
        if kind == "node":
            path = value["path"]
            source = _open_node(path if dev_root == "/" else dev_root + path, value["major"], value["minor"])
            binds += _bind(root, path, source, NODE_OPTIONS, mount_ids)
        elif kind == "mount":
            binds += _bind(root, value["destination"], _open_file(value["source"]), value["options"], mount_ids)
        elif kind == "gid":
            warn(f"group {value} of the GPUs' nodes", GpushimError("a hook cannot add it; use --group-add"))
    rules = [edit.value[1:3] for edit in edits if edit.kind == "rule"]  # of character devices, all of them
    if rules:
        from gpuhook.inject import devices  # a hook of a CDI spec has none

        devices.allow(root.process, rules, warn)
    if binds:
        mounts.bind(root.process, binds)
    for bind in binds:
        for fd in (bind.source, bind.directory, bind.target):
            posix.close(fd)


def mount_files(files: list[tuple[str, str]], root: Rootfs, warn: Callable[[str, Exception], None]) -> None:
    """Mount what a CDI spec has its hook mount.

    Args:
        files: of the driver: path on the host, and in the container.
        warn: as for `apply_edits`.

    Raises:
        GpushimError: the container would lack one of them.
    """
    values = [
        {"destination": path, "source": source, "type": "bind", "options": FILE_OPTIONS} for source, path in files
    ]
    apply_edits([Edit("mount", value) for value in values], root, "/", warn)


def _open_node(path: str, major: int, minor: int) -> Source:
    fd, facts = _open(path)
    if facts.st_mode & TYPE != CHARACTER or facts.st_rdev != posix.makedev(major, minor):
        posix.close(fd)
        raise GpushimError(f"{path} is not the device {major}:{minor} any more; run gpushim refresh", INVENTORY)
    return path, fd, facts


def _open_file(path: str) -> Source:
    """Open a file or directory of the driver; what others can exchange comes by service_sockets.py."""
    fd, facts = _open(path)
    if facts.st_mode & TYPE not in (REGULAR, DIRECTORY):
        posix.close(fd)
        raise GpushimError(f"{path} is neither a file nor a directory any more; run gpushim refresh", INVENTORY)
    return path, fd, facts


def _open(path: str) -> tuple[int, posix.stat_result]:
    try:
        fd = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(
            f"{path} is gone from the host ({error.strerror}); run gpushim refresh", INVENTORY
        ) from None
    return fd, posix.fstat(fd)


def _bind(root: Rootfs, path: str, source: Source, options: list[str], mount_ids: set[bytes]) -> list[mounts.Bind]:
    """Find or make the target for a file of the host; return nothing if the container has that file already."""
    host_path, fd, facts = source
    try:
        target = mountpoints.find(root, path, facts, mount_ids)
    except OtherMountError:
        raise GpushimError(
            f"the container cannot get {path}: that place is on a volume or a mount shared with the host, and a hook "
            f"does not write there; leave that volume out, or mount {host_path} there too",
            ROOTFS,
        ) from None
    except OSError as error:
        raise GpushimError(
            f"the container cannot get {path}: its place in the rootfs cannot be made: {error.strerror}", ROOTFS
        ) from None
    if target:
        return [mounts.Bind(host_path, fd, target, options)]
    posix.close(fd)
    return []
