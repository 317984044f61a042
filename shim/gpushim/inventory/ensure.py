"""Hand a create the snapshot, brought up to date first if the host has changed since.

Budget: reading and comparing, well under a millisecond. The slow branch, a refresh in a child process with a
deadline, imports what it needs then. NVML is never called in this process: it can hang where no signal ends it.
Out of scope: finding anything out (refresh.py).
"""

from __future__ import annotations

import posix
import sys
import time

from gpushim import __version__, fastjson, stamp
from gpushim.errors import INVENTORY, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SNAPSHOT = "inventory.json"
SCHEMA = 6
SNAPSHOT_LIMIT = 16 << 20  # bytes; eight GPUs need about 8 KiB
STDERR_LIMIT = 8192  # bytes of what the child says last
PREFIX = "gpushim: "  # of a refusal on stderr
DEADLINE = 20  # seconds, if the policy cannot be read here; the child will say why
GRACE = 2  # seconds beyond the child's own deadline: then the kernel holds it
REGULAR = 0o100000  # S_IFREG
FILE_TYPE = 0o170000  # S_IFMT
OTHERS_WRITE = 0o022  # S_IWGRP | S_IWOTH


def snapshot(config: str, state: str) -> dict[str, Any]:
    """Return a snapshot that is true now.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.

    Returns:
        the snapshot, as the docstring of gpushim.inventory describes it; its "error" may say that the host cannot
        serve GPUs.

    Raises:
        GpushimError: there is none and a refresh fails or takes too long; the refresh's own sentence and code.
    """
    found = read(config, state)
    if found is not None:
        return found
    queue = _queue(state, time.monotonic() + DEADLINE)
    try:
        return _renewed(config, state)
    finally:
        if queue is not None:
            posix.close(queue)


def _renewed(config: str, state: str) -> dict[str, Any]:
    found = read(config, state)  # by now another create may have had it done
    for _ in range(2):
        if found is not None:
            return found
        code, said = _refresh(config, state)
        found = read(config, state)
        if found is None and code:
            raise GpushimError(said, code)
    if found is None:
        raise GpushimError("the host's GPUs keep changing while they are listed; try again in a moment", INVENTORY)
    return found


def read(config: str, state: str) -> dict[str, Any] | None:
    """Return the saved snapshot if it is ours and still true, else None.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.
    """
    found, stale = last(config, state)
    return None if stale else found


def last(config: str, state: str) -> tuple[dict[str, Any], str]:
    """Return the saved snapshot, and in which way it is stale.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.

    Returns:
        the snapshot and "" (it is true) or "host" (the host has changed since, or may have; the policy in it still
        holds); {} and "policy" if there is none of ours, or config.toml has changed.
    """
    found = _parsed(_trusted(f"{state}/{SNAPSHOT}"))
    if found.get("version") != SCHEMA or found.get("gpushim") != __version__:
        return {}, "policy"
    try:
        if found["inputs"]["config"] != config:
            return {}, "policy"
        then, now = found["stamp"], stamp.current(found["inputs"])
        if then == now or stamp.same_from_here(then, now):
            # Whoever may not renew it, as a rootless engine, goes by the facts alone.
            return found, "" if stamp.alive(found) or not posix.access(state, posix.W_OK) else "host"
        return (found, "host") if then[stamp.CONFIG_IDENTITY] == now[stamp.CONFIG_IDENTITY] else ({}, "policy")
    except (KeyError, IndexError, TypeError, ValueError):  # of an odd shape, or a path with a NUL
        return {}, "policy"


def look_at_channels(inventory: dict[str, Any], channels: list[int]) -> None:
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


def _parsed(data: bytes | None) -> dict[str, Any]:
    try:
        found = fastjson.loads(data or b"{}", SNAPSHOT, own=True)
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
        if status.st_mode & FILE_TYPE != REGULAR or status.st_mode & OTHERS_WRITE:
            return None
        if not stamp.trusted(status.st_uid) or status.st_size > SNAPSHOT_LIMIT:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)


def _queue(state: str, deadline: float) -> int | None:
    """Wait while another create has the snapshot renewed: after a boot many start at once, and one child will do.

    Args:
        state: directory of the snapshot.
        deadline: when to wait no longer, as time.monotonic().

    Returns:
        a file descriptor; the next in the queue goes on when it is closed, and with this process it is. None if there
        is no queue, for a user who may not renew a snapshot, or it does not move: a child of our own is right too.
    """
    from fcntl import LOCK_EX, LOCK_NB, flock

    try:
        try:
            posix.mkdir(state)
            posix.chmod(state, 0o755)  # as refresh makes it
        except FileExistsError:
            pass
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW
        fd = posix.open(state + "/queue", flags, 0o600)
    except OSError:
        return None
    while True:
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            return fd
        except OSError:
            if time.monotonic() > deadline:
                posix.close(fd)
                return None
            time.sleep(0.01)


def _refresh(config: str, state: str) -> tuple[int, str]:
    """Run a refresh in a child; returns its exit code (0: well) and the last thing that it said."""
    import subprocess  # some 10 ms, beside the hundreds that the child takes

    seconds = _deadline(config)
    deadline = time.monotonic() + seconds + GRACE
    ours, theirs = posix.pipe()
    environment = {"PATH": _path(), "LC_ALL": "C.UTF-8", "GPUSHIM_CONFIG": config, "GPUSHIM_STATE": state}
    nothing = subprocess.DEVNULL
    try:
        child = subprocess.Popen(command(), stdin=nothing, stdout=nothing, stderr=theirs, env=environment)
    except OSError as error:
        posix.close(ours)
        return INVENTORY, f"gpushim refresh cannot be started: {error}"
    finally:
        posix.close(theirs)
    try:
        said = _last_words(ours, deadline)
        code = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return INVENTORY, _abandon(child, seconds, config)
    finally:
        posix.close(ours)
    if code < 0:
        return INVENTORY, f"gpushim refresh was ended by signal {-code}; run it by hand to see why"
    return code, said or f"gpushim refresh failed with code {code} and did not say why; run it by hand"


def command() -> list[str]:
    """Return the command line of the child: this Python, isolated, with the stub beside this package."""
    stub = __file__.rpartition("/inventory/")[0] + "/stub.py"
    return [sys.executable or "/usr/bin/python3", "-IB", stub, "refresh"]


def too_slow(what: str, seconds: int, config: str) -> str:
    """Say that a refresh was given up.

    Args:
        what: was being waited for.
        seconds: how long.
        config: path of config.toml, where the deadline is set.
    """
    return (
        f"listing the host's GPUs waited {seconds} s for {what} and gave up; GPUs that must be initialised first, or "
        "are stuck, take that long: turn on persistence mode (nvidia-persistenced, or nvidia-smi -pm 1) and run "
        f"gpushim refresh; deadline-seconds under [refresh] in {config} sets the time"
    )


def _deadline(config: str) -> int:
    from gpushim import policy  # imports json and more

    try:
        return int(policy.load(config)["refresh"]["deadline-seconds"])
    except GpushimError:
        return DEADLINE


def _path() -> str:
    path = posix.environ.get(b"PATH", b"/usr/sbin:/usr/bin:/sbin:/bin")
    return str(path, "utf-8", "surrogateescape")


def _last_words(fd: int, deadline: float) -> str:
    """Read what the child says until it ends or the deadline comes; returns its last line."""
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    tail = b""
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = posix.read(fd, STDERR_LIMIT)
        if not piece:
            break
        tail = (tail + piece)[-STDERR_LIMIT:]
    line = str(tail, "utf-8", "replace").strip().rpartition("\n")[2]
    return line[len(PREFIX) :] if line.startswith(PREFIX) else line


def _abandon(child: Any, seconds: int, config: str) -> str:
    """Kill the child, and leave it if the kernel holds it (state D): a create must end."""
    import subprocess

    child.kill()
    try:
        child.wait(0.2)
    except subprocess.TimeoutExpired:
        return too_slow("the NVIDIA kernel module, which holds the process fast,", seconds, config)
    return too_slow("NVML", seconds, config)
