"""Cheap facts that change when the inventory would: a create compares them instead of asking NVML.

Whatever a plan takes from the snapshot has a fact here, or the snapshot has a short life: `survey.COVER` says which,
and a test changes one after the other on a simulated host (test_freshness.py).

Budget: under 0.2 ms for one GPU and 0.4 ms for eight; a handful of stats and short reads of /proc.
On the create path: imports only `posix`, `time` and the error. Out of scope: surveying the host (inventory/).
"""

from __future__ import annotations

import posix
import time

from gpushim.errors import CONFIG, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.model import DriverFacts, Identity, Inputs, Mig, NodeFacts, Snapshot, Stamp

CONFIG_FILE = "/etc/gpushim/config.toml"
STATE_DIR = "/run/gpushim"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
VERSION_LIMIT = 256  # bytes of /proc/driver/nvidia/version; the module's version is in its first line
DIRECTORY, REGULAR, LINK, SOCKET = 0o040000, 0o100000, 0o120000, 0o140000  # S_IFDIR, S_IFREG, S_IFLNK, S_IFSOCK
FILE_TYPE = 0o170000  # S_IFMT
OTHERS_WRITE = 0o022  # S_IWGRP | S_IWOTH
_OVERFLOW = 65534  # /proc/sys/kernel/overflowuid, which nobody changes
DEVICES_LIMIT = 1 << 16  # bytes of /proc/devices, which has about 1 KiB


def config_path() -> str:
    """Return the path of config.toml: GPUSHIM_CONFIG, which must be absolute, or the one in /etc."""
    return _from_environment(b"GPUSHIM_CONFIG", CONFIG_FILE)


def state_dir() -> str:
    """Return the directory of the snapshot: GPUSHIM_STATE (tests, rootless use; absolute), or the one in /run."""
    return _from_environment(b"GPUSHIM_STATE", STATE_DIR)


def current(inputs: Inputs) -> Stamp:
    """Gather the facts that decide whether a snapshot is still true.

    It is, until its life is over, while two stamps are equal; "libraries" is the library cache's identity, and
    "nodes" has what `node` returns for each path.
    """
    root = inputs["root"]
    return {
        "boot": boot(),
        "config": identity(inputs["config"]),
        **driver(proc_dir(root), inputs["sys"], inputs["times"]),
        "libraries": identity("/etc/ld.so.cache" if root == "/" else root + "/etc/ld.so.cache"),
        "nodes": [node(path) for path in inputs["nodes"]],
    }


def boot() -> str | None:
    """Return the boot id of the kernel, which no other boot has."""
    return _text(BOOT_ID, 64)


def alive(snapshot: Snapshot, ahead: float = 0) -> bool:
    """Say whether a snapshot's life (0: endless) goes on for so many more seconds.

    The clock neither jumps nor stops during a suspend. If it is behind the snapshot, as in a time namespace, the age
    is unknown.
    """
    return not snapshot["life"] or 0 <= clock() - snapshot["looked"] < snapshot["life"] - ahead


def clock() -> float:
    """Return the seconds since boot, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def driver(proc: str, sys: str, times: bool) -> DriverFacts:
    """Gather the facts that the kernel tells: the module's version, major numbers, GPUs, MIG instances.

    A GPU gets its minor number when the driver is bound to it. sysfs gives each binding a link with an inode number
    that never comes again (kernfs_new_node in fs/kernfs/dir.c), while reading a GPU's `information` would wake it,
    and hang where the driver hangs (nv_procfs_read_gpu_info). `times` says whether procfs keeps the times of its
    entries.

    Returns:
        "module": text of the version file or null; "majors": lines of /proc/devices; "gpus": inode number of the
        binding or null, by GPU; "mig": what `_made` returns, by GPU, GPU instance and compute instance.
    """
    nvidia = proc + "/driver/nvidia"
    return {
        "module": _text(nvidia + "/version", VERSION_LIMIT),
        "majors": _majors(proc),
        "gpus": {name: _inode(f"{sys}/bus/pci/drivers/nvidia/{name}") for name in _names(nvidia + "/gpus")},
        "mig": _mig(nvidia + "/capabilities", times),
    }


def proc_dir(root: str) -> str:
    """Return the /proc that shows the driver: that of the driver root, if it is mounted there, or the host's."""
    if root == "/":
        return "/proc"
    try:
        posix.stat(root + "/proc/driver/nvidia")
    except OSError:
        return "/proc"
    return root + "/proc"


def node(path: str) -> NodeFacts | None:
    """Return the facts about a node, file or directory; None if there is none.

    Those of a file or directory are its time, which changes with its content, and at the end which one it is: one
    that takes its place may have its time, too (cp -a, rsync -a, another mount). Of a socket it is that it is there.
    """
    try:
        status = posix.lstat(path)
    except OSError:
        return None
    if status.st_mode & FILE_TYPE == SOCKET:
        return [0, SOCKET, 0, 0]  # whose service may change all else of it
    if status.st_mode & FILE_TYPE in (DIRECTORY, REGULAR):
        return [status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid, status.st_dev, status.st_ino]
    return [status.st_rdev, status.st_mode, status.st_uid, status.st_gid]


def trusted(uid: int) -> bool:
    """Say whether a file's owner is root or the user who runs this.

    In a user namespace the host's root appears as the overflow user (user_namespaces(7)), as do all users without a
    mapping; but there this process has no more power than its user.
    """
    return uid in (0, posix.geteuid()) or (uid == _OVERFLOW and in_user_namespace())


def others_may(status: posix.stat_result) -> bool:
    """Say whether anybody but root and this user owns a file or directory, or may write to it."""
    return not trusted(status.st_uid) or status.st_mode & OTHERS_WRITE != 0


def ours(folder: str) -> bool:
    """Say whether this is a directory, and no link, that only root and this user can write to."""
    try:
        status = posix.lstat(folder)
    except OSError:
        return False
    return status.st_mode & FILE_TYPE == DIRECTORY and not others_may(status)


def in_user_namespace() -> bool:
    """Say whether this process is in a user namespace other than the host's."""
    return (_text("/proc/self/uid_map", 256) or "").split() != ["0", "0", "4294967295"]


def same_from_here(then: Stamp, now: Stamp) -> bool:
    """Compare two stamps without the owners of nodes, which look different in a user namespace."""
    return in_user_namespace() and _ownerless(then) == _ownerless(now)


def _ownerless(facts: Stamp) -> Stamp:
    return {**facts, "nodes": [node and [*node[:2], *node[4:]] for node in facts["nodes"]]}


def _from_environment(name: bytes, default: str) -> str:
    value = posix.environ.get(name)
    if not value:
        return default
    if not value.startswith(b"/"):
        raise GpushimError(
            f"{str(name, 'ascii')} is {ascii(value)[1:]}, which is not an absolute path; begin it with /", CONFIG
        )
    return str(value, "utf-8", "surrogateescape")


def identity(path: str) -> Identity | None:
    """Return what tells a file from its replacement or a changed one; None if there is no such name.

    Returns:
        device, inode, mtime (ns), size and ctime (ns), which also changes with mode and owner, by which the file is
        trusted. They are the link's own if it is dangling, and five times the errno if the file cannot be seen.
    """
    try:
        status = posix.lstat(path)
        if status.st_mode & FILE_TYPE == LINK:
            try:
                status = posix.stat(path)
            except FileNotFoundError:
                pass
    except FileNotFoundError:
        return None
    except OSError as error:
        return [error.errno or 0] * 5
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns]


def _text(path: str, limit: int) -> str | None:
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        return str(posix.read(fd, limit), "latin-1")
    except OSError:
        return None
    finally:
        posix.close(fd)


def _names(path: str, prefix: str = "") -> list[str]:
    try:
        return [name for name in posix.listdir(path) if name.startswith(prefix)]
    except OSError:
        return []


def _majors(proc: str) -> list[str]:
    """List the lines of /proc/devices about the driver and related ones."""
    text = _text(proc + "/devices", DEVICES_LIMIT) or ""
    return [line for line in text.split("\n") if "nvidia" in line or "gdrdrv" in line]


def _inode(path: str) -> int | None:
    try:
        return posix.lstat(path).st_ino
    except OSError:
        return None


def _mig(capabilities: str, times: bool) -> Mig:
    """List GPUs in MIG mode with their instances; other GPUs have no gi directory."""
    found: Mig = {}
    for gpu in _names(capabilities, "gpu"):
        mig = f"{capabilities}/{gpu}/mig"
        instances = {
            gi: {ci: _made(f"{mig}/{gi}/{ci}") if times else None for ci in _computes(f"{mig}/{gi}")}
            for gi in _names(mig, "gi")
        }
        if instances:
            found[gpu] = instances
    return found


def _computes(gi: str) -> list[str]:
    """List the compute instances of a GPU instance; for the usual single one, two stats are cheaper than a listing.

    The link count of a directory in /proc tells how many directories it has.
    """
    try:
        if posix.lstat(gi).st_nlink == 3 and posix.lstat(gi + "/ci0"):
            return ["ci0"]
    except OSError:
        pass
    return _names(gi, "ci")


def _made(path: str) -> list[int] | None:
    """Return what tells an entry of /proc from a later one of the same name.

    The inode number alone does not: the kernel reuses the lowest free one. The time is that of the kernel's first
    lookup (proc_get_inode in fs/proc/inode.c); if the kernel drops it, the instance looks new.
    """
    try:
        status = posix.lstat(path)
    except OSError:
        return None
    return [status.st_ino, status.st_ctime_ns]
