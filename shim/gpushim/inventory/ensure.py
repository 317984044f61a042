"""Read the saved snapshot, and say whether it is still true: whether its stamp is.

A stamp has cheap facts that change when the inventory would: a create compares them instead of asking NVML. Whatever
a plan takes from the snapshot has a fact here, or the snapshot has a short life: `survey.COVER` says which, and a
test changes one after the other on a simulated host (test_freshness.py).

On the create path. Budget: well under a millisecond to read and compare; the stamp, a handful of stats and short
reads of /proc, 0.2 ms for one GPU and 0.4 ms for eight. Out of scope: waiting for a true one (renew.py), listing the
host (survey.py), another version's snapshot (save.py).
"""

from __future__ import annotations

import posix

from gpushim import __version__
from gpushim.ground import fastjson, system
from gpushim.ground.errors import GpushimError
from gpushim.paths import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.ground.model import DriverFacts, Inputs, LauncherFacts, Mig, NodeFacts, Snapshot, Stamp

SNAPSHOT = "inventory.json"
# Nodes of the driver's that belong to no GPU.
CONTROL_NODE, MODESET_NODE = "/dev/nvidiactl", "/dev/nvidia-modeset"
UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CONTROL_NODES = (CONTROL_NODE, *UVM_NODES, MODESET_NODE)
CAPS_DIR = "/dev/nvidia-caps"
# Capabilities `config` and `monitor` of /proc/driver/nvidia-caps/mig-minors, the same on every driver with MIG.
GRANTED_CAPS = MIG_CONFIG_NODE, MIG_MONITOR_NODE = CAPS_DIR + "/nvidia-cap1", CAPS_DIR + "/nvidia-cap2"
IMEX_DIR = "/dev/nvidia-caps-imex-channels"
IMEX_CHANNEL = IMEX_DIR + "/channel"  # and its number
# A snapshot says in which form it is, and as "version" which form at least a reader must know to understand it. A
# member that is added raises FORM alone, as does one that goes and that no reader reads; one that goes otherwise, or
# means something else, raises READABLE too. See save.py.
FORM = 15
READABLE = 10
SNAPSHOT_LIMIT = 16 << 20  # bytes; eight GPUs need about 8 KiB
NONE: Snapshot = {}  # type: ignore[typeddict-item]
VERSION_LIMIT = 256  # bytes of /proc/driver/nvidia/version; the module's version is in its first line
DEVICES_LIMIT = 1 << 16  # bytes of /proc/devices, which has about 1 KiB


def read(config: str, state: str) -> Snapshot | None:
    """Return the saved snapshot if it is ours and still true, else None."""
    found, stale = last(config, state)
    return None if stale else found


def last(config: str, state: str) -> tuple[Snapshot, str]:
    """Return the saved snapshot, and in which way it is stale.

    Returns:
        the snapshot and "" (it is true) or "host" (the host has, or may have, changed since; its policy still holds);
        {} and "policy" if there is none that can be trusted, or config.toml or the launcher's files have changed.
    """
    found: Snapshot = own(f"{state}/{SNAPSHOT}") if trust.ours(state) else NONE
    if found.get("form") != FORM or found.get("gpushim") != __version__:
        return NONE, "policy"
    try:
        if found["inputs"]["config"] != config or found["told"] != launcher_facts(state):
            return NONE, "policy"
        then, now = found["stamp"], current(found["inputs"])
        if then == now or same_from_here(then, now):
            # Who may not renew it, as a rootless engine, relies on the facts alone.
            return found, "" if alive(found) or not posix.access(state, posix.W_OK) else "host"
        return (found, "host") if then["config"] == now["config"] else (NONE, "policy")
    except (KeyError, IndexError, TypeError, ValueError):  # of another shape, or a path with a NUL
        return NONE, "policy"


def launcher_facts(state: str) -> LauncherFacts:
    """Gather facts about the files that launcher and hook read, to see whether one was changed since the refresh."""
    found: LauncherFacts = {"config": trust.identity(state + "/config")}
    for name in ("runtime", "triggers", "params", "empty"):
        fact = node(f"{state}/{name}")
        found[name] = fact and [*fact[:2], trust.trusted(fact[2]), *fact[4:]]  # owners look different in a namespace
    return found


def look_at_channels(inventory: Snapshot, channels: list[int]) -> None:
    """Update mode and owner of these IMEX channels, which the stamp omits, as there may be thousands."""
    for number in channels if not trust.in_user_namespace() else ():  # owners look different there
        path = f"{IMEX_CHANNEL}{number}"
        listed, root = inventory["nodes"].get(path), inventory["driver"]["dev-root"]
        found = node(path if root == "/" else root + path)
        if listed and found:
            listed[2:] = [found[1] & 0o777, *found[2:]]


def own(path: str, limit: int = SNAPSHOT_LIMIT) -> Any:
    """Read a JSON object of the state directory; {} if there is none, or somebody else may have written it."""
    try:
        found = fastjson.loads(_trusted(path, limit) or b"{}", SNAPSHOT, own=True)
    except GpushimError:
        return {}
    return found if isinstance(found, dict) else {}


def _trusted(path: str, limit: int) -> bytes | None:
    """Read a file that only root or this user can have written."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if status.st_mode & trust.FILE_TYPE != trust.REGULAR or trust.others_may(status) or status.st_size > limit:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)


def current(inputs: Inputs) -> Stamp:
    """Gather the facts that decide whether a snapshot is still true.

    It is, until its life is over, while two stamps are equal; "libraries" is the library cache's identity, and
    "nodes" has what `node` returns for each path.
    """
    root = inputs["root"]
    return {
        "boot": system.boot(),
        "config": trust.identity(inputs["config"]),
        **driver(proc_dir(root), inputs["sys"], inputs["times"]),
        "libraries": trust.identity("/etc/ld.so.cache" if root == "/" else root + "/etc/ld.so.cache"),
        "nodes": [node(path) for path in inputs["nodes"]],
    }


def alive(snapshot: Snapshot, ahead: float = 0) -> bool:
    """Say whether a snapshot's life (0: endless) goes on for so many more seconds.

    The clock neither jumps nor stops during a suspend. If it is behind the snapshot, as in a time namespace, the age
    is unknown.
    """
    return not snapshot["life"] or 0 <= system.clock() - snapshot["looked"] < snapshot["life"] - ahead


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
        "module": system.text(nvidia + "/version", VERSION_LIMIT),
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
    if status.st_mode & trust.FILE_TYPE == trust.SOCKET:
        return [0, trust.SOCKET, 0, 0]  # whose service may change all else of it
    if status.st_mode & trust.FILE_TYPE in (trust.DIRECTORY, trust.REGULAR):
        return [status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid, status.st_dev, status.st_ino]
    return [status.st_rdev, status.st_mode, status.st_uid, status.st_gid]


def same_from_here(then: Stamp, now: Stamp) -> bool:
    """Compare two stamps without the owners of nodes, which look different in a user namespace."""
    return trust.in_user_namespace() and _ownerless(then) == _ownerless(now)


def _ownerless(facts: Stamp) -> Stamp:
    return {**facts, "nodes": [node and [*node[:2], *node[4:]] for node in facts["nodes"]]}


def _names(path: str, prefix: str = "") -> list[str]:
    try:
        return [name for name in posix.listdir(path) if name.startswith(prefix)]
    except OSError:
        return []


def _majors(proc: str) -> list[str]:
    """List the lines of /proc/devices about the driver and related ones."""
    text = system.text(proc + "/devices", DEVICES_LIMIT) or ""
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
        instances = {gi: _computes(f"{mig}/{gi}", times) for gi in _names(mig, "gi")}
        if instances:
            found[gpu] = instances
    return found


def _computes(gi: str, times: bool) -> dict[str, list[int] | None]:
    """List the compute instances of a GPU instance; for the usual single one, two stats are cheaper than a listing.

    The link count of a directory in /proc tells how many directories it has.
    """
    try:
        if posix.lstat(gi).st_nlink == 3:
            return {"ci0": _made(posix.lstat(gi + "/ci0"), times)}
    except OSError:
        pass
    found: dict[str, list[int] | None] = {}
    for ci in _names(gi, "ci"):
        try:
            found[ci] = _made(posix.lstat(f"{gi}/{ci}"), times)
        except OSError:
            found[ci] = None
    return found


def _made(status: posix.stat_result, times: bool) -> list[int] | None:
    """Return what tells an entry of /proc from a later one of the same name.

    The inode number alone does not: the kernel reuses the lowest free one. The time is that of the kernel's first
    lookup (proc_get_inode in fs/proc/inode.c); if the kernel drops it, the instance looks new.
    """
    return [status.st_ino, status.st_ctime_ns] if times else None
