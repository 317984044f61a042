"""Check that the mounts of config.json are in the container, and nowhere on the host.

Create puts these mounts where they cannot propagate (gpushim.oci.propagation). This is the second look, when the
low-level runtime has mounted them: a mount that lies on a volume is on the host's side of it, too. Such a mount is
unmounted, and the container refused. So is a container that lacks a file, because a volume lies over its path.

The hook comes here only where a volume could carry mounts to the host; its own mounts are never on a volume.
"""

from __future__ import annotations

import posix

from gpuhook.inject.roots import same
from gpushim.ground.errors import ROOTFS, GpushimError, visible
from gpushim.paths import mountinfo
from gpushim.paths.mountinfo import mount_id
from gpushim.paths.walk import PATH_ONLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs

_Kind = tuple[bytes, bytes]  # major:minor of a file system, and the place in it


def check(root: Rootfs, mounted: list[tuple[str, str]]) -> None:
    """Look for a container's mounts, (trusted path on the host, path in it), and for copies of them on the host.

    Raises:
        GpushimError: there was a copy, or something is not there.
        OSError: the container's process has ended.
    """
    hosts = {mount.id: mount for mount in mountinfo.parse(mountinfo.read(""))}
    kinds = {_kind(source, hosts) for source, _ in mounted}
    copies = [
        mount for mount in _propagated(hosts, mountinfo.parse(root.mounts())) if (mount.device, mount.root) in kinds
    ]
    for copy in reversed(copies):
        _take_away(copy)
    if copies:
        raise GpushimError(_sentence(copies), ROOTFS)
    for source, path in mounted:
        if not _is_there(root, source, path):
            raise GpushimError(
                f"the container would start without {visible(path)}: a volume that can propagate mounts to the host "
                "is mounted over it; mount that volume elsewhere, or with the propagation rslave or rprivate",
                ROOTFS,
            )


def _sentence(copies: list[mountinfo.Mount]) -> str:
    """Return the sentence about mounts that had reached the host, after they were taken away."""
    ids = {mount.id for mount in mountinfo.parse(mountinfo.read(""))}
    for copy in copies:
        if copy.id in ids:
            return (
                f"a mount for the container has reached the host, at {_shown(copy.point)}, where another covers it; "
                "unmount both, and mount no volume with shared propagation"
            )
    return (
        f"a mount for the container has reached the host, at {_shown(copies[0].point)}, through a volume with shared "
        "propagation, and was taken away again; mount that volume with the propagation rslave or rprivate"
    )


def _propagated(hosts: dict[bytes, mountinfo.Mount], mounts: list[mountinfo.Mount]) -> list[mountinfo.Mount]:
    """List the host's mounts that are copies of a container's: on a peer of the same parent, and at the same path in
    it.
    """
    by_id = {mount.id: mount for mount in mounts}
    keys = set()
    for mount in mounts:
        parent = by_id.get(mount.parent)
        if parent and parent.shared and mount.id not in hosts:
            keys.add((parent.shared, _below(mount, parent), mount.device, mount.root))
    copies = []
    for mount in hosts.values():
        parent = hosts.get(mount.parent)
        if parent and any(
            (group, _below(mount, parent), mount.device, mount.root) in keys for group in parent.groups
        ):
            copies.append(mount)
    return copies


def _below(mount: mountinfo.Mount, parent: mountinfo.Mount) -> bytes:
    """Return a mount's path in the file system of its parent, which peers may show in other parts."""
    inside = mount.point[len(parent.point.rstrip(b"/")) :]
    return parent.root.rstrip(b"/") + inside


def _kind(source: str, hosts: dict[bytes, mountinfo.Mount]) -> _Kind:
    """Return the file system of a file on the host, and its path there."""
    fd = posix.open(source, posix.O_PATH | posix.O_CLOEXEC)
    try:
        mount = hosts.get(mount_id(fd))
        if mount is None:
            raise GpushimError(f"{visible(source)} was mounted over just now; start the container again", ROOTFS)
        path = mountinfo.escaped(posix.readlink(f"/proc/self/fd/{fd}".encode()))
    finally:
        posix.close(fd)
    return mount.device, (mount.root.rstrip(b"/") + path[len(mount.point.rstrip(b"/")) :]) or b"/"


def _take_away(copy: mountinfo.Mount) -> None:
    """Unmount a copy, if it is still what the path leads to."""
    from gpuhook.inject import mounts  # 1.3 ms: `posix` lacks umount2(2)

    path = mountinfo.unescaped(copy.point)
    try:
        fd = posix.open(path, PATH_ONLY)
        try:
            if mount_id(fd) == copy.id:
                mounts.take_away(fd)
        finally:
            posix.close(fd)
    except OSError as error:
        raise GpushimError(
            f"a mount for the container has reached the host, at {_shown(copy.point)}, and cannot be taken away: "
            f"{error.strerror}; unmount it, and mount no volume with shared propagation",
            ROOTFS,
        ) from None


def _shown(path: bytes) -> str:
    return visible(path.decode(errors="replace"))


def _is_there(root: Rootfs, source: str, path: str) -> bool:
    try:
        fd = root.reach(path)
    except OSError:
        return False
    try:
        return same(source, fd)
    finally:
        posix.close(fd)
