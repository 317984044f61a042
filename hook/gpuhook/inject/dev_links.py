"""Look at the GPUs' nodes in a container's /dev, and make links beside them.

A link of /dev, such as those below /dev/dri/by-path, is made where the node that it leads to is in the container.
It is written only on the rootfs's own mount and on a tmpfs that is the container's alone (roots.py): with
`-v /dev:/dev` it is the host's, and nothing is written there.

Hot path: builtin modules only.
"""

from __future__ import annotations

import posix

from gpuhook.inject.roots import own_dev
from gpushim.ground.errors import INVENTORY, ROOTFS, GpushimError
from gpushim.paths.walk import CHARACTER, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from gpushim.paths.rootfs import Rootfs

GPU_MAJOR = 195  # of /dev/nvidia<minor>: Documentation/admin-guide/devices.txt of Linux
GPU_LIMIT = 254  # minor numbers of GPUs lie below; 254 is nvidia-modeset's, 255 nvidiactl's
MASK_BITS = 64  # of EGLVisibleDGPUDevices


def link(root: Rootfs, links: list[tuple[str, str, str]], warn: Callable[[str, Exception], None]) -> None:
    """Make the links whose nodes are there.

    Args:
        links: (text, directory, name), all below /dev.
        warn: takes what was skipped, and the error.
    """
    mount_ids: set[bytes] | None = None
    for text, directory, name in links:
        path = f"{directory}/{name}"
        try:
            if _number(root, _target(text, directory)) is None:
                continue
            mount_ids = own_dev(root) if mount_ids is None else mount_ids
            parent = root.directory(directory, create=True, also=mount_ids)
            try:
                parent.symlink(text, name)
            finally:
                parent.close()
        except OSError as error:
            warn(path, error)


def _target(text: str, directory: str) -> str:
    """Return where a link will lead. Its directory need not be there yet, so `..` is taken from the words."""
    words: list[str] = []
    for word in (text if text.startswith("/") else f"{directory}/{text}").split("/"):
        if word == "..":
            del words[-1:]
        else:
            words.append(word)
    return "/".join(words) or "/"


def gpus(root: Rootfs) -> list[int]:
    """List the minor numbers of the GPUs whose nodes are in the container; its /dev itself is not read."""
    return [minor for minor in range(GPU_LIMIT) if has_gpu(root, minor)]


def has_gpu(root: Rootfs, minor: int) -> bool:
    """Return whether the node of a GPU is in the container, and is that device."""
    return _number(root, f"/dev/nvidia{minor}") == posix.makedev(GPU_MAJOR, minor)


def granted_gpus(spec: dict[str, Any]) -> set[int | None]:
    """Return the minor numbers of the GPUs that config.json lets a container open; None in it: of any.

    What an image has in the place of a node hides it, and takes away no rule: the container's /dev tells less.
    """
    linux = spec.get("linux")
    linux = linux if isinstance(linux, dict) else {}
    resources = linux.get("resources")
    minors = {device.get("minor") for device in _objects(linux.get("devices")) if device.get("major") == GPU_MAJOR}
    for rule in _objects(resources.get("devices") if isinstance(resources, dict) else None):
        access, major = str(rule.get("access") or "rwm"), rule.get("major")
        if rule.get("allow") is True and rule.get("type") in (None, "", "a", "c") and {*access} & {"r", "w"}:
            is_any = major in (None, -1) or rule.get("minor") in (None, -1)
            minors |= {None if is_any else rule.get("minor")} if major in (None, -1, GPU_MAJOR) else set()
    return {minor for minor in minors if minor is None or (type(minor) is int and 0 <= minor < GPU_LIMIT)}


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def check_bindings(
    root: Rootfs, spec: dict[str, Any], gpus: list[tuple[int, str]], bound: list[tuple[int, int]], folder: str
) -> None:
    """Refuse a container whose node of a GPU may be another GPU's now: minor numbers are the driver's, at a binding.

    A CDI spec has the numbers of the moment in which it was written. Its GPU is the same as long as its binding is:
    sysfs gives an inode number only once. What is not bound has no node that works.

    Args:
        gpus: minor number and PCI address of each GPU in the spec.
        bound: minor number and inode number of the binding of each at that moment.
        folder: the driver's directory in sysfs, which has the bindings.

    Raises:
        GpushimError: the GPU of a node of the container is bound anew since.
    """
    names, granted = dict(gpus), granted_gpus(spec)
    for minor, inode in bound:
        current = _inode(f"{folder}/{names[minor]}") if minor in names else None
        if current == inode or not (current or _has_new_binding(bound, folder)):
            continue
        if not granted.isdisjoint((minor, None)) or has_gpu(root, minor):  # its number may be another's
            raise GpushimError(
                f"GPU {names[minor]} is bound to the driver anew since the CDI spec was written: /dev/nvidia{minor} "
                "may be another GPU; run gpushim refresh, and start the container again",
                INVENTORY,
            )


def _has_new_binding(bound: list[tuple[int, int]], folder: str) -> bool:
    """Return whether any GPU is bound that was not when the spec was written: it may have a number that came free."""
    inodes = {inode for _, inode in bound}
    try:
        names = [name for name in posix.listdir(folder) if name.count(":") == 2]
    except OSError:
        return False
    return any(_inode(f"{folder}/{name}") not in inodes for name in names)


def _inode(path: str) -> int | None:
    try:
        return posix.lstat(path).st_ino
    except OSError:
        return None


def mask(minors: list[int], warn: Callable[[str, Exception], None]) -> int:
    """Return the mask that tells NVIDIA's EGL which GPUs are the container's: bit n for minor number n."""
    too_high = [minor for minor in minors if minor >= MASK_BITS]
    if too_high:
        error = GpushimError(f"the mask of GPUs has {MASK_BITS} bits", ROOTFS)
        warn(f"/dev/nvidia{too_high[0]} in the application profile", error)
    return sum([1 << minor for minor in minors if minor < MASK_BITS])


def _number(root: Rootfs, path: str) -> int | None:
    """Return the number of a character device of the container; None if there is none at that path."""
    try:
        fd = root.reach(path)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        return status.st_rdev if status.st_mode & TYPE == CHARACTER else None
    finally:
        posix.close(fd)
