"""Tell which mounts of a container that is being created are its alone.

While its hooks run, a container's mount namespace holds copies of all mounts of the host beside its own, and its
rootfs is still at the host's path. What is mounted below that path and nowhere on the host was made for it.

Out of scope: what is written there. Hot path: builtin modules only; the hook imports this where it needs it.
"""

from __future__ import annotations

import posix

from gpushim.paths import mountinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.paths.rootfs import Rootfs


def own_mounts(root: Rootfs) -> list[mountinfo.Mount]:
    """Find the mounts that are a container's alone.

    These are its rootfs and what was mounted for it, such as its /dev. A file system that the host has mounted too
    comes from a volume, and is the user's or the host's. So is a mount whose mounts would propagate to the host.
    The host's mounts are those of the caller's namespace, or, from within the container's, those that do not lie
    below the rootfs: copies of the host's, which stay there until pivot_root(2).

    Raises:
        OSError: the container's process has ended.
    """
    theirs = mountinfo.parse(root.mounts())
    if root.process:
        hosts = mountinfo.parse(mountinfo.read(""))
    else:
        top = _path(root)
        hosts = [one for one in theirs if one.id != root.mount and not one.place.startswith(top + b"/")]
    devices, groups = {one.device for one in hosts}, {group for one in hosts for group in one.groups}
    return [one for one in theirs if (one.id == root.mount or one.device not in devices) and one.shared not in groups]


def own_dev(root: Rootfs) -> set[bytes]:
    """Find the mounts on which a container's /dev may be written to: tmpfs of its own.

    Nothing that outlives the container is on such a one. With `-v /dev:/dev` the host's devtmpfs is not among them.

    Returns:
        ids of mounts.

    Raises:
        OSError: the container's process has ended.
    """
    return {one.id for one in own_mounts(root) if one.type == b"tmpfs"}


def _path(root: Rootfs) -> bytes:
    """Return where the rootfs is, as mountinfo spells it."""
    path = posix.readlink(f"/proc/self/fd/{root.fd}".encode())
    return mountinfo.escaped(path).rstrip(b"/")
