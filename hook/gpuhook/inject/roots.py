"""Open a container's root, and find the mounts that are the container's alone: that root, and those made for it.

A hook of a CDI spec is not told which rootfs it is; the bundle's config.json is. While its hooks run, a container's
mount namespace holds copies of all mounts of the host beside its own, and its rootfs is still at the host's path.
What is mounted below that path and nowhere on the host was made for it.

Hot path: builtin modules only; of the mounts that a container sees, its own is looked up.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds, fastjson
from gpushim.ground.errors import BUNDLE, ROOTFS, GpushimError, visible
from gpushim.paths import mountinfo
from gpushim.paths.mountinfo import held, mount_id
from gpushim.paths.rootfs import KERNELS, Rootfs
from gpushim.paths.walk import PATH_ONLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.paths.mountinfo import Mount


RESTORED = "stopped"  # runc's word for a container while it restores it


def is_restored(state: dict[str, Any]) -> bool:
    """Return whether a hook's container is being restored from a checkpoint: its root is its own already."""
    return state.get("status") == RESTORED


def process_of(pid: int) -> str:
    """Return the directory of a container's process in /proc, held open.

    Raises:
        GpushimError: there is no such process.
    """
    try:
        return held(pid)
    except OSError as error:
        raise GpushimError(f"the container's process {pid} cannot be found: {error.strerror}", ROOTFS) from None


def open_root(process: str, path: str) -> Rootfs:
    """Open a created container's rootfs; `process` is as for `mounts.bind`.

    Raises:
        GpushimError: there is no such rootfs.
    """
    try:
        return Rootfs(process, path)
    except OSError as error:
        raise GpushimError(f"the rootfs {visible(path)} cannot be opened: {error.strerror}", ROOTFS) from None


def is_host_root(root: Rootfs, *tops: str) -> bool:
    """Return whether this is the root directory of this process, or another directory that is no container's root."""
    return any(same(root.fd, top) for top in ("/", *tops))


def same(first: int | str, second: int | str) -> bool:
    """Return whether two paths, or open files, are the same file."""
    a, b = posix.stat(first), posix.stat(second)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def check(root: Rootfs) -> None:
    """Check that this is the root that runc or crun have mounted for the container, and nothing laid over it.

    Both mount the rootfs onto itself. A volume whose destination leads to the root comes on top of that, where
    pivot_root(2) and the path find it; it is the user's. So all that is mounted in the place must be the same
    directory, or that which the host's side of the path shows, where the caller has one.

    Raises:
        GpushimError: it is another directory.
        OSError: it cannot be looked at.
    """
    path, mount = visible(root.path), root.mounted(root.mount)
    above = posix.open("..", PATH_ONLY, dir_fd=root.fd)
    try:
        # Above the root directory is the root directory: that of a process which has gone there already.
        if mount_id(above) == root.mount and not same(above, root.fd):
            raise GpushimError(
                f"the rootfs {path} is not a mount point, as the root of a container is; mount it onto itself, or "
                "name the container's",
                ROOTFS,
            )
    finally:
        posix.close(above)
    if not mount or mount.type in KERNELS:
        raise GpushimError(f"the rootfs {path} is on no file system for containers", ROOTFS)
    if _covered(root, mount) and not (root.process and _is_hosts(root)):
        raise GpushimError(f"the rootfs {path} is covered by a volume; let no volume's destination lead to /", ROOTFS)


def _is_hosts(root: Rootfs) -> bool:
    """Return whether this is the directory that has the path on the host."""
    try:
        hosts = Rootfs("", root.path)
    except OSError:
        return False
    try:
        return same(hosts.fd, root.fd)
    finally:
        posix.close(hosts.fd)


def _covered(root: Rootfs, mount: Mount) -> bool:
    """Return whether another directory is mounted below this mount, at the same path."""
    while True:
        below = root.mounted(mount.parent)
        if not below or below.id == mount.id or below.point != mount.point:
            return False
        if (below.device, below.root) != (mount.device, mount.root):
            return True
        mount = below


def own_mounts(root: Rootfs) -> list[mountinfo.Mount]:
    """Return the mounts that are a container's alone.

    These are its rootfs and what was mounted for it, such as its /dev. A file system that the host has mounted too
    comes from a volume, and is the user's or the host's. So is a mount whose mounts would propagate to the host.
    The host's mounts are those of the caller's namespace, or, from within the container's, those that do not lie
    below the rootfs: copies of the host's, which stay there until pivot_root(2).

    Raises:
        OSError: the container's process has ended.
    """
    mounts = mountinfo.parse(root.mounts())
    if root.process:
        hosts = mountinfo.parse(mountinfo.read(""))
    else:
        top = _spelled_path(root)
        hosts = [mount for mount in mounts if mount.id != root.mount and not mount.point.startswith(top + b"/")]
    devices, groups = {mount.device for mount in hosts}, {group for mount in hosts for group in mount.groups}
    return [
        mount
        for mount in mounts
        if (mount.id == root.mount or mount.device not in devices) and mount.shared not in groups
    ]


def own_dev(root: Rootfs) -> set[bytes]:
    """Return the ids of the mounts on which a container's /dev may be written to: tmpfs of its own.

    Nothing that outlives the container is on such a mount. With `-v /dev:/dev` the host's devtmpfs is not among them.

    Raises:
        OSError: the container's process has ended.
    """
    return {mount.id for mount in own_mounts(root) if mount.type == b"tmpfs"}


def _spelled_path(root: Rootfs) -> bytes:
    """Return where the rootfs is, as mountinfo spells it."""
    path = posix.readlink(f"/proc/self/fd/{root.fd}".encode())
    return mountinfo.escaped(path).rstrip(b"/")


def bundle_of(state: dict[str, Any]) -> str:
    """Return the bundle's directory: the state's ("bundlePath" before runtime-spec 1.0), or the working one.

    Raises:
        GpushimError: it is not an absolute path, or is gone.
    """
    from gpushim.oci import bundle  # gpushim-runtime names the rootfs, and nobody asks

    path = _usable(state.get("bundle") or state.get("bundlePath") or bundle.working_directory())
    if not path.startswith("/"):
        raise GpushimError("the container's state on stdin names no absolute path of the bundle", BUNDLE)
    return path if path.strip("/") else _bundle_of_parent() or path


def _bundle_of_parent() -> str:
    """Return the bundle in the command line of the low-level runtime, which wrote the state; "" if it names none.

    crun says that the bundle is where it works itself. To bind nodes for a user namespace, it goes to the container's
    mount namespace, which takes it to /.

    A command line is a process's own word. It counts as the state on stdin does, as long as its writer is this
    process's user and works where this process does; and as there, the rootfs is one only if the kernel has it so
    (`check`). An orphan's new parent has not called it.
    """
    pid = posix.getppid()
    try:
        if not _calls(f"/proc/{pid}"):
            return ""
        line = mountinfo.read_proc(f"/proc/{pid}/cmdline", bounds.STATE)
    except OSError:
        return ""
    return "" if posix.getppid() != pid else _named(line.decode("utf-8", "surrogateescape").split("\0"))


def _calls(process: str) -> bool:
    """Return whether a process may be the runtime that called this one: of this user, and in this mount namespace."""
    return posix.stat(process).st_uid == posix.geteuid() and same(f"{process}/ns/mnt", "/proc/self/ns/mnt")


def _named(words: list[str]) -> str:
    """Return the absolute path of the bundle in a low-level runtime's words; the last one counts, as there."""
    path = ""
    for word, following in zip(words, [*words[1:], ""]):
        option, equals, value = word.partition("=")
        if option in ("--bundle", "-b"):
            path = value if equals else following
    return path if path.startswith("/") else ""


def rootfs_of(state: dict[str, Any]) -> str:
    """Return the absolute path of a container's rootfs: root.path of config.json, which may count from the bundle.

    Raises:
        GpushimError: config.json cannot be read, or names none.
    """
    return read_bundle(state)[0]


def read_bundle(state: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what `rootfs_of` does, and config.json; raise as that does."""
    from gpushim.oci import bundle

    directory = bundle_of(state)
    path = directory + "/config.json"
    spec = fastjson.loads(bundle.read(path)[0], path)
    root = spec.get("root") if isinstance(spec, dict) else None
    rootfs = _usable(root.get("path") if isinstance(root, dict) else None)
    if not rootfs:
        raise GpushimError(f"{path}: root.path is not the path of a rootfs", BUNDLE)
    return rootfs if rootfs.startswith("/") else f"{directory}/{rootfs}", spec


def _usable(value: object) -> str:
    """Return a value of a JSON document if the kernel can take it for a path, else ""; half a pair has no bytes."""
    try:
        return value if isinstance(value, str) and b"\0" not in value.encode("utf-8", "surrogateescape") else ""
    except UnicodeEncodeError:
        return ""
