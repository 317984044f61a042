"""Read the saved snapshot, and say whether it is still true.

Budget: reading and comparing, well under a millisecond.
Out of scope: waiting for one that is true (renew.py), and finding anything out (survey.py).
"""

from __future__ import annotations

import posix

from gpushim import __version__, fastjson, stamp
from gpushim.errors import GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.model import Snapshot, Told

SNAPSHOT = "inventory.json"
SCHEMA = 8
SNAPSHOT_LIMIT = 16 << 20  # bytes; eight GPUs need about 8 KiB
REGULAR = 0o100000  # S_IFREG
FILE_TYPE = 0o170000  # S_IFMT
NONE: Snapshot = {}  # type: ignore[typeddict-item]  # where there is none that counts


def read(config: str, state: str) -> Snapshot | None:
    """Return the saved snapshot if it is ours and still true, else None.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.
    """
    found, stale = last(config, state)
    return None if stale else found


def last(config: str, state: str) -> tuple[Snapshot, str]:
    """Return the saved snapshot, and in which way it is stale.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.

    Returns:
        the snapshot and "" (it is true) or "host" (the host has changed since, or may have; the policy in it still
        holds); {} and "policy" if there is none of ours, or config.toml or what was told the launcher has changed.
    """
    found: Snapshot = own(f"{state}/{SNAPSHOT}") if stamp.ours(state) else NONE
    if found.get("version") != SCHEMA or found.get("gpushim") != __version__:
        return NONE, "policy"
    try:
        if found["inputs"]["config"] != config or found["told"] != told(state):
            return NONE, "policy"
        then, now = found["stamp"], stamp.current(found["inputs"])
        if then == now or stamp.same_from_here(then, now):
            # Whoever may not renew it, as a rootless engine, goes by the facts alone.
            return found, "" if stamp.alive(found) or not posix.access(state, posix.W_OK) else "host"
        return (found, "host") if then["config"] == now["config"] else (NONE, "policy")
    except (KeyError, IndexError, TypeError, ValueError):  # of an odd shape, or a path with a NUL
        return NONE, "policy"


def told(state: str) -> Told:
    """Gather facts about what launcher and hook read, which change when somebody has touched it since the refresh.

    Args:
        state: directory of the snapshot.
    """
    found: Told = {"config": stamp.identity(state + "/config")}
    for name in ("runtime", "triggers", "params", "empty"):
        fact = stamp.node(f"{state}/{name}")
        found[name] = fact and [*fact[:2], stamp.trusted(fact[2])]  # owners look different in a namespace
    return found


def look_at_channels(inventory: Snapshot, channels: list[int]) -> None:
    """Bring mode and owner of IMEX channels up to date, which the stamp leaves out: there may be thousands.

    Args:
        inventory: the snapshot, which is changed.
        channels: numbers of those that a container asks for.
    """
    for number in channels if not stamp.in_user_namespace() else ():  # owners look different there
        path = f"/dev/nvidia-caps-imex-channels/channel{number}"
        listed, root = inventory["nodes"].get(path), inventory["driver"]["dev-root"]
        found = stamp.node(path if root == "/" else root + path)
        if listed and found:
            listed[2:] = [found[1] & 0o777, *found[2:]]


def own(path: str) -> Any:
    """Read a JSON object of the state directory; {} if there is none, or others can have written it.

    Args:
        path: of the file.
    """
    try:
        found = fastjson.loads(_trusted(path) or b"{}", SNAPSHOT, own=True)
    except GpushimError:
        return {}
    return found if isinstance(found, dict) else {}


def _trusted(path: str) -> bytes | None:
    """Read a file that only root or we ourselves can have written."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if status.st_mode & FILE_TYPE != REGULAR or stamp.others_may(status) or status.st_size > SNAPSHOT_LIMIT:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)
