"""Read the saved snapshot, and say whether it is still true.

On the create path. Budget: well under a millisecond to read and compare.
Out of scope: waiting for a true one (renew.py), listing the host (survey.py).
"""

from __future__ import annotations

import posix

from gpushim import __version__
from gpushim.ground import fastjson
from gpushim.ground.errors import GpushimError
from gpushim.inventory import stamp
from gpushim.paths import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.ground.model import LauncherFacts, Snapshot

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
# member that is added raises FORM alone; one that goes, or means something else, raises READABLE too. See form.py.
FORM = 11
READABLE = 10
SNAPSHOT_LIMIT = 16 << 20  # bytes; eight GPUs need about 8 KiB
NONE: Snapshot = {}  # type: ignore[typeddict-item]


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
        then, now = found["stamp"], stamp.current(found["inputs"])
        if then == now or stamp.same_from_here(then, now):
            # Who may not renew it, as a rootless engine, relies on the facts alone.
            return found, "" if stamp.alive(found) or not posix.access(state, posix.W_OK) else "host"
        return (found, "host") if then["config"] == now["config"] else (NONE, "policy")
    except (KeyError, IndexError, TypeError, ValueError):  # of another shape, or a path with a NUL
        return NONE, "policy"


def launcher_facts(state: str) -> LauncherFacts:
    """Gather facts about the files that launcher and hook read, to see whether one was changed since the refresh."""
    found: LauncherFacts = {"config": trust.identity(state + "/config")}
    for name in ("runtime", "triggers", "params", "empty"):
        fact = stamp.node(f"{state}/{name}")
        found[name] = fact and [*fact[:2], trust.trusted(fact[2]), *fact[4:]]  # owners look different in a namespace
    return found


def look_at_channels(inventory: Snapshot, channels: list[int]) -> None:
    """Update mode and owner of these IMEX channels, which the stamp omits, as there may be thousands."""
    for number in channels if not trust.in_user_namespace() else ():  # owners look different there
        path = f"{IMEX_CHANNEL}{number}"
        listed, root = inventory["nodes"].get(path), inventory["driver"]["dev-root"]
        found = stamp.node(path if root == "/" else root + path)
        if listed and found:
            listed[2:] = [found[1] & 0o777, *found[2:]]


def own(path: str) -> Any:
    """Read a JSON object of the state directory; {} if there is none, or somebody else may have written it."""
    try:
        found = fastjson.loads(_trusted(path) or b"{}", SNAPSHOT, own=True)
    except GpushimError:
        return {}
    return found if isinstance(found, dict) else {}


def _trusted(path: str) -> bytes | None:
    """Read a file that only root or this user can have written."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if (
            status.st_mode & trust.FILE_TYPE != trust.REGULAR
            or trust.others_may(status)
            or status.st_size > SNAPSHOT_LIMIT
        ):
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)
