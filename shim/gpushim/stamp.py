"""Cheap facts that change when the inventory would: what a create compares instead of asking NVML.

Budget: under 0.15 ms for one GPU and 0.4 ms for eight; a handful of stats and short reads of /proc.
On the create path: imports only `posix` and the error. Out of scope: finding anything out (inventory/).
"""

from __future__ import annotations

import posix

from gpushim.errors import CONFIG, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG_FILE = "/etc/gpushim/config.toml"
STATE_DIR = "/run/gpushim"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
VERSION_LIMIT = 256  # bytes of /proc/driver/nvidia/version; the module's version is in its first line
DIRECTORY, REGULAR = 0o040000, 0o100000  # S_IFDIR, S_IFREG
FILE_TYPE = 0o170000  # S_IFMT
_OVERFLOW = 65534  # /proc/sys/kernel/overflowuid, which nobody changes
CONFIG_IDENTITY = 1  # where `current` has the facts about config.toml


def config_path() -> str:
    """Return the path of config.toml: GPUSHIM_CONFIG, or the one in /etc.

    Raises:
        GpushimError: GPUSHIM_CONFIG is not an absolute path.
    """
    return _from_environment(b"GPUSHIM_CONFIG", CONFIG_FILE)


def state_dir() -> str:
    """Return the directory of the snapshot: GPUSHIM_STATE (for tests and rootless use), or the one in /run.

    Raises:
        GpushimError: GPUSHIM_STATE is not an absolute path.
    """
    return _from_environment(b"GPUSHIM_STATE", STATE_DIR)


def current(inputs: dict[str, Any]) -> list[Any]:
    """Gather the facts that decide whether a snapshot still tells the truth.

    Args:
        inputs: "config" (path of config.toml), "root" (the driver root, absolute) and "nodes" (paths on the host
            whose coming, going or changing matters).

    Returns:
        plain data that survives JSON: boot id, config file, module version, GPUs, MIG instances, library cache,
        nodes. Two equal lists mean that the snapshot holds.
    """
    root = inputs["root"]
    cache = "/etc/ld.so.cache" if root == "/" else root + "/etc/ld.so.cache"
    return [
        _text(BOOT_ID, 64),
        _identity(inputs["config"]),
        *driver(proc_dir(root)),
        _identity(cache),
        [node(path) for path in inputs["nodes"]],
    ]


def driver(proc: str) -> list[Any]:
    """Gather the facts that the kernel module tells: its version, its GPUs, their MIG instances.

    Args:
        proc: where the procfs that shows the driver is mounted.

    Returns:
        [text of the version file or null, names of the GPUs, [[GPU, [[GPU instance, [compute instance]]]]]].
    """
    nvidia = proc + "/driver/nvidia"
    return [_text(nvidia + "/version", VERSION_LIMIT), _names(nvidia + "/gpus"), _mig(nvidia + "/capabilities")]


def proc_dir(root: str) -> str:
    """Return the /proc that shows the driver of a driver root; a driver container's may be mounted there or not."""
    if root == "/":
        return "/proc"
    try:
        posix.stat(root + "/proc/driver/nvidia")
    except OSError:
        return "/proc"
    return root + "/proc"


def node(path: str) -> list[int] | None:
    """Return what a create compares of a node, file or directory; None if there is none."""
    try:
        status = posix.lstat(path)
    except OSError:
        return None
    what = status.st_rdev
    if status.st_mode & FILE_TYPE in (DIRECTORY, REGULAR):
        what = status.st_mtime_ns  # a directory changes with the nodes in it, a file with what it says
    return [what, status.st_mode, status.st_uid, status.st_gid]


def trusted(uid: int) -> bool:
    """Say whether a file's owner is root, or who runs this.

    In a user namespace the host's root appears as the overflow user (user_namespaces(7)), and so do all others who
    have no place in it; but there nobody has more power than the user who runs this anyway.
    """
    return uid in (0, posix.geteuid()) or (uid == _OVERFLOW and in_user_namespace())


def in_user_namespace() -> bool:
    """Say whether this process is in a user namespace other than the host's."""
    return (_text("/proc/self/uid_map", 256) or "").split() != ["0", "0", "4294967295"]


def same_from_here(then: list[Any], now: list[Any]) -> bool:
    """Compare facts without the owners of nodes, which look different in a user namespace.

    Args:
        then: what `current` returned, maybe on the host.
        now: what it returns here.
    """
    return in_user_namespace() and _ownerless(then) == _ownerless(now)


def _ownerless(facts: list[Any]) -> list[Any]:
    return [*facts[:-1], [node and node[:2] for node in facts[-1]]]


def _from_environment(name: bytes, default: str) -> str:
    value = posix.environ.get(name)
    if not value:
        return default
    if not value.startswith(b"/"):
        raise GpushimError(
            f"{str(name, 'ascii')} is {ascii(value)[1:]}, which is not an absolute path; begin it with /", CONFIG
        )
    return str(value, "utf-8", "surrogateescape")


def _identity(path: str) -> list[int] | None:
    try:
        status = posix.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]


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
        return sorted(name for name in posix.listdir(path) if name.startswith(prefix))
    except OSError:
        return []


def _mig(capabilities: str) -> list[Any]:
    """List GPUs in MIG mode with their instances; a GPU that is not has no gi directory."""
    found = []
    for gpu in _names(capabilities, "gpu"):
        mig = f"{capabilities}/{gpu}/mig"
        instances = [[gi, _names(f"{mig}/{gi}", "ci")] for gi in _names(mig, "gi")]
        if instances:
            found.append([gpu, instances])
    return found
