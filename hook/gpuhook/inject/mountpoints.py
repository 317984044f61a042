"""Targets in a container that a hook may mount on: on file systems of its own, in a mount namespace of its own.

Hot path: builtin modules only.
"""

from __future__ import annotations

import posix

from gpuhook.inject import roots
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.paths.directory import make_on
from gpushim.paths.mountinfo import OtherMountError, mount_id
from gpushim.paths.rootfs import KERNELS
from gpushim.paths.trust import in_user_namespace
from gpushim.paths.walk import CHARACTER, DIRECTORY, TYPE, walk_to_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Optional

    from gpushim.paths.rootfs import Rootfs

    Target = tuple[int, str, int]  # O_PATH fd of the directory, name in it, O_PATH fd of the file there

NODEV = 4  # ST_NODEV


def check_namespace(root: Rootfs) -> None:
    """Check that mounts made for a container are nobody else's.

    Raises:
        GpushimError: its mount namespace is the host's, or cannot be told from it.
    """
    if root.process:
        _check_theirs(root.process)
    else:
        _check_own(root)


def _check_theirs(process: str) -> None:
    try:
        is_host = roots.same("/proc/self/ns/mnt", f"{process}/ns/mnt")
    except OSError as error:
        raise GpushimError(
            f"the mount namespace of the container's process cannot be looked at: {error.strerror}; the hook "
            "must run as the engine's user",
            ROOTFS,
        ) from None
    if is_host:
        raise GpushimError(
            "the container has no mount namespace of its own: mounts for it would be the host's", ROOTFS
        )


def _check_own(root: Rootfs) -> None:
    try:
        is_host = roots.same("/proc/self/ns/mnt", "/proc/1/ns/mnt")
    except OSError:
        # Not even root may always look at process 1. Only a process in a user namespace can be sure all the same:
        # the kernel lets it mount in mount namespaces of that user namespace alone (mount_namespaces(7)).
        is_host = not in_user_namespace()
    if is_host:
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


def find(root: Rootfs, path: str, facts: posix.stat_result, mount_ids: Collection[bytes]) -> Optional[Target]:
    """Find or make the target for a file of the host; return None if the container has that file there already.

    Args:
        facts: about the host's file.
        mount_ids: mounts that may be mounted on.

    Returns:
        the target, whose fds the caller closes.

    Raises:
        OSError: it cannot be made, or is on another mount (OtherMountError).
        GpushimError: it is a directory and the file is none, or the reverse; or it is the kernel's.
    """
    is_directory = facts.st_mode & TYPE == DIRECTORY
    directory, name, target = walk_to_entry(
        root.fd, path, make_on(mount_ids, file=not is_directory), root.way(mount_ids)
    )
    try:
        if not _is_there(target, facts):
            if (posix.fstat(target).st_mode & TYPE == DIRECTORY) != is_directory:
                obstacle = "no directory" if is_directory else "a directory"
                raise GpushimError(f"the container cannot get {path}: the image has {obstacle} there", ROOTFS)
            mount = mount_id(target)
            if mount not in mount_ids:
                raise OtherMountError(path)
            below = None if mount == root.mount else root.mounted(mount)
            # The kernel's text, by which programs in the container go.
            if below and below.type in KERNELS:
                raise GpushimError(
                    f"the container cannot get {path}: a link of the image leads to a file system of the kernel's "
                    f"there ({below.type.decode()}); use another image",
                    ROOTFS,
                )
            return directory, name, target
    except BaseException:
        close((directory, name, target))
        raise
    close((directory, name, target))
    return None


def close(target: Target) -> None:
    posix.close(target[0])
    posix.close(target[2])


def _is_there(target: int, facts: posix.stat_result) -> bool:
    """Return whether a target is the host's file, or a usable node of the same device."""
    status = posix.fstat(target)
    if status.st_mode & TYPE == CHARACTER == facts.st_mode & TYPE:
        return status.st_rdev == facts.st_rdev and not posix.fstatvfs(target).f_flag & NODEV
    return (status.st_dev, status.st_ino) == (facts.st_dev, facts.st_ino)
