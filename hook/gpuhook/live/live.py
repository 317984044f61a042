"""Put a plan's edits into a container that is created but not started: the second way for edits to land.

The container's process waits in its own mount namespace, with its mounts made and its rootfs still at the
host's path. Device nodes and files of the driver are bind-mounted there, rules go to its cgroup. What a created
process cannot be given any more (variables, groups) is the engine's.

Out of scope: what a container gets (plan.py), the system calls (mounts.py), the rules (devices.py), links
and loader cache (finish.py).
"""

from __future__ import annotations

import posix

from gpuhook.live import mounts, roots
from gpushim.ground.errors import INVENTORY, ROOTFS, GpushimError
from gpushim.oci.edits import FILE_OPTIONS, NODE_OPTIONS, SOCKET_OPTIONS, Edit
from gpushim.paths.directory import make_on
from gpushim.paths.mountinfo import OtherMountError, mount_id
from gpushim.paths.trust import in_user_namespace
from gpushim.paths.walk import CHARACTER, DIRECTORY, REGULAR, SOCKET, TYPE, walk_to_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from gpushim.paths.rootfs import Rootfs

    Source = tuple[str, int, posix.stat_result]  # path on the host, O_PATH fd, what it is

NODEV = mounts.NODEV


def apply(edits: list[Edit], root: Rootfs, dev_root: str, warn: Callable[[str, Exception], None]) -> None:
    """Give a created container its device nodes, rules and files; what is there already is left alone.

    Args:
        edits: as the docstring of gpushim.oci.edits describes them; env and hook are left to others.
        root: the container's rootfs.
        dev_root: absolute path of the directory that the host's nodes lie below.
        warn: takes what was skipped, and the error.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    if root.process:
        _check_namespace(root.process)
    else:
        _check_own_namespace(root)
    roots.check(root)
    own = {one.id for one in roots.own_mounts(root)}
    binds = []
    for edit in edits:
        kind, value = edit.kind, edit.value
        if kind == "node":
            path = value["path"]
            source = _open_node(path if dev_root == "/" else dev_root + path, value["major"], value["minor"])
            binds += _bind(root, path, source, NODE_OPTIONS, own)
        elif kind == "mount":
            binds += _bind(root, value["destination"], _open_file(value["source"]), value["options"], own)
        elif kind == "gid":
            warn(f"group {value} of the GPUs' nodes", GpushimError("a hook cannot add it; use --group-add"))
    rules = [edit.value[1:3] for edit in edits if edit.kind == "rule"]  # of character devices, all of them
    if rules:
        from gpuhook.live import devices  # a hook of a CDI spec has none

        devices.allow(root.process, rules, warn)
    if binds:
        mounts.bind(root.process, binds)
    for one in binds:
        for fd in (one.source, one.directory, one.place):
            posix.close(fd)


def mount(
    files: list[tuple[str, str]],
    sockets: list[tuple[str, str]],
    root: Rootfs,
    warn: Callable[[str, Exception], None],
) -> None:
    """Mount what a CDI spec has its hook mount.

    Args:
        files: of the driver: path on the host, and in the container.
        sockets: of its services, and their directories, in the same form.
        root: the container's rootfs.
        warn: as for `apply`.

    Raises:
        GpushimError: the container would lack one of them.
    """
    edits = []
    for pairs, options in ((files, FILE_OPTIONS), (sockets, SOCKET_OPTIONS)):
        for source, path in pairs:
            value = {"destination": path, "source": source, "type": "bind", "options": options}
            edits.append(Edit("mount", value))
    apply(edits, root, "/", warn)


def _check_namespace(process: str) -> None:
    try:
        hosts = roots.same("/proc/self/ns/mnt", f"{process}/ns/mnt")
    except OSError as error:
        raise GpushimError(
            f"the mount namespace of the container's process cannot be looked at: {error.strerror}; the hook "
            "must run as the engine's user",
            ROOTFS,
        ) from None
    if hosts:
        raise GpushimError(
            "the container has no mount namespace of its own: mounts for it would be the host's", ROOTFS
        )


def _check_own_namespace(root: Rootfs) -> None:
    """See that mounts which this process makes below the rootfs are nobody else's."""
    try:
        hosts = roots.same("/proc/self/ns/mnt", "/proc/1/ns/mnt")
    except OSError:
        # Not even root may always look at process 1. Only a process in a user namespace can be sure all the same:
        # the kernel lets it mount in mount namespaces of that user namespace alone (mount_namespaces(7)).
        hosts = not in_user_namespace()
    if hosts:
        raise GpushimError(
            "this is the host's mount namespace, or cannot be told from it, and mounts for a container would be the "
            "host's: name the container's process with --pid",
            ROOTFS,
        )
    mount = root.mounted(root.mount)
    if mount and mount.shared:
        raise GpushimError(
            "the rootfs lies on a shared mount, so mounts for the container would be others' too; make it private "
            "first (mount --make-rprivate)",
            ROOTFS,
        )


def _open_node(path: str, major: int, minor: int) -> Source:
    """Open a device node of the host, and see that it is that device."""
    fd, facts = _open(path)
    if facts.st_mode & TYPE != CHARACTER or facts.st_rdev != posix.makedev(major, minor):
        posix.close(fd)
        raise GpushimError(f"{path} is not the device {major}:{minor} any more; run gpushim refresh", INVENTORY)
    return path, fd, facts


def _open_file(path: str) -> Source:
    """Open a file, socket or directory of the driver."""
    fd, facts = _open(path)
    if facts.st_mode & TYPE not in (REGULAR, SOCKET, DIRECTORY):
        posix.close(fd)
        raise GpushimError(
            f"{path} is neither a file nor a socket or directory any more; run gpushim refresh", INVENTORY
        )
    return path, fd, facts


def _open(path: str) -> tuple[int, posix.stat_result]:
    try:
        fd = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(
            f"{path} is gone from the host ({error.strerror}); run gpushim refresh", INVENTORY
        ) from None
    return fd, posix.fstat(fd)


def _bind(root: Rootfs, path: str, source: Source, options: list[str], own: set[bytes]) -> list[mounts.Bind]:
    """Find or make the place for a file of the host; return nothing if the container has that file already."""
    host_path, fd, facts = source
    try:
        folder = facts.st_mode & TYPE == DIRECTORY
        directory, name, place = walk_to_place(root.fd, path, make_on(own, file=not folder), root.way(own))
        if not _is_there(place, facts):
            if (posix.fstat(place).st_mode & TYPE == DIRECTORY) != folder:
                found = "no directory" if folder else "a directory"
                raise GpushimError(f"the container cannot get {path}: the image has {found} there", ROOTFS)
            if mount_id(place) not in own:
                raise OtherMountError(path)
            return [mounts.Bind(host_path, fd, (directory, name, place), options)]
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
    for done in (fd, directory, place):
        posix.close(done)
    return []


def _is_there(place: int, facts: posix.stat_result) -> bool:
    """Say whether a place has the host's file, or a usable node of the same device."""
    found = posix.fstat(place)
    if found.st_mode & TYPE == CHARACTER == facts.st_mode & TYPE:
        return found.st_rdev == facts.st_rdev and not posix.fstatvfs(place).f_flag & NODEV
    return (found.st_dev, found.st_ino) == (facts.st_dev, facts.st_ino)
