"""Renew the snapshot for a create that found it stale: ask the service for a refresh, or start one.

One refresh runs at a time: whoever holds the lock surveys the host, be it a unit, a person or the child of a create.
What is for all is the service's (refresh_socket.py), for a create may have the limits of the tenant whose container
it makes.
Only where no service goes by this configuration and state, as in a checkout or with rootless engines, or none
answers, does a create start a child. The child inherits the lock and goes on when the create gives up, so that a host
that takes longer than an engine waits has its snapshot in the end. For that it has a session, a working directory and
descriptors of its own: most engines end no other process when a create fails. Where one does (a unit that runs
`podman run` and is stopped), the kernel releases the lock and the next create starts another refresh.

Everyone who waited for a refresh gets the error that it tells. How its process ended, and what it lacked for itself,
is nobody else's: the next create tries again. Out of scope: what a refresh does (refresh.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

from gpushim.config import policy
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, modules, refresh_socket, scarce, stamp
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from gpushim.ground.model import Belongs, Inputs, Snapshot

LOCK, FAILURE = "lock", "failure"  # in the state directory
STDERR_LIMIT = 8192  # bytes at the end of the child's stderr
WHAT_LIMIT = 256  # bytes of what a refresh is waiting for
PREFIX = "gpushim: "  # of a refusal on stderr
ATTEMPTS = 2
PAUSE = 0.01  # seconds between two attempts to lock
LEAST = 1  # second that everyone waits before config.toml is read for the deadline
SLOW = (
    "GPUs that must be initialised first, or are stuck, take that long: turn on persistence mode "
    "(nvidia-persistenced, or nvidia-smi -pm 1)"
)


def snapshot(config: str, state: str) -> Snapshot:
    """Return a snapshot that is true now.

    Raises:
        GpushimError: the refresh failed (its own sentence and code), or takes longer than a create waits.
    """
    found = ensure.read(config, state)
    if found is not None:
        return found
    wait, lock = _Wait(config), _opened(state)
    try:
        for _ in range(ATTEMPTS):
            wait = _served(config, state, lock, wait)
            found = _outcome(config, state, wait)  # before the lock, which a create that is slow or frozen would keep
            while found is None and lock is not None and not _taken(lock):
                wait.a_moment(lock)
            found = found or _outcome(config, state, wait)
            if found is not None:
                return found
            _refresh(config, state, lock, wait)
            found = ensure.read(config, state)  # before the service is asked once more
            if found is not None:
                return found
    finally:
        if lock is not None:
            os.close(lock)  # a child that still runs keeps it
    raise GpushimError("the host's GPUs keep changing while they are listed; try again in a moment", INVENTORY)


def command() -> list[str]:
    """Return the command line of the child: this Python, isolated, with the stub beside this package."""
    stub = __file__.rpartition("/inventory/")[0] + "/create/stub.py"
    return [sys.executable or "/usr/bin/python3", "-IB", stub, "refresh"]


def facts(config: str) -> Belongs:
    """Gather the facts about host and configuration for which a failure counts, and no others."""
    try:
        root = policy.load(config)["driver"]["root"]
    except GpushimError:
        root = "/"
    inputs: Inputs = {"config": config, "root": root, "sys": modules.sys_dir(root), "times": False, "nodes": []}
    return {"inputs": inputs, "stamp": stamp.current(inputs)}


def record(state: str, belongs: Belongs, error: GpushimError) -> None:
    """Tell those who wait why a refresh failed that began with these `facts`; the caller holds the lock."""
    failure = {**belongs, "at": _now(), "sentence": str(error), "code": error.exit_code}
    with contextlib.suppress(OSError):  # then each of them tries for itself
        if trust.ours(state):
            replace(f"{state}/{FAILURE}", json.dumps(failure).encode(), 0o600)


def _outcome(config: str, state: str, wait: _Wait) -> Snapshot | None:
    """Return what another refresh has made; refuse as `_pass_on` does; None if there was none."""
    found = ensure.read(config, state)
    if found is None:
        _pass_on(state, config, wait.began)
    return found


def _pass_on(state: str, config: str, since: int) -> None:
    """Refuse with the error of a refresh that failed while this create waited, unless the host has changed since."""
    failure = ensure.own(f"{state}/{FAILURE}")
    try:
        counts = since <= failure["at"] <= _now() and failure["inputs"]["config"] == config
        if counts and stamp.current(failure["inputs"]) == failure["stamp"]:
            raise GpushimError(str(failure["sentence"]), int(failure["code"]))
    except (KeyError, IndexError, TypeError, ValueError):  # none, or of another version
        return


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # the same for all processes; nobody sets it


class _Wait:
    """How long a create has waited, of what config.toml allows."""

    def __init__(self, config: str) -> None:
        self.config, self.began, self.seconds = config, _now(), 0

    def a_moment(self, lock: int | None) -> None:
        """Sleep; refuse after too long, with what the refresh is waiting for."""
        waited = (_now() - self.began) / 1e9
        if waited > LEAST and not self.seconds:
            self.seconds = _seconds(self.config)
        if self.seconds and waited > self.seconds:
            what = b"" if lock is None else os.pread(lock, WHAT_LIMIT, 0)
            raise GpushimError(
                f"listing the host's GPUs has waited {self.seconds} s for "
                f"{str(what, 'utf-8', 'replace').strip() or 'its process'}, and goes on without this container: try "
                f"again later; {SLOW}; deadline-seconds under [refresh] in {self.config} is how long a start waits",
                INVENTORY,
            )
        time.sleep(PAUSE)


def _served(config: str, state: str, lock: int | None, wait: _Wait) -> _Wait:
    """Have the service refresh, if there is one; returns how long a child may take, which is as long again if the
    service hangs without the lock.
    """
    try:
        refresh_socket.refreshed(config, state, lambda: wait.a_moment(lock))
    except GpushimError:
        if lock is None or not _taken(lock):
            raise
        return _Wait(config)
    return wait


def _seconds(config: str) -> int:
    try:
        return int(policy.load(config)["refresh"]["deadline-seconds"])
    except GpushimError:  # the refresh reports it
        return int(policy.defaults()["refresh"]["deadline-seconds"])


def _opened(state: str) -> int | None:
    """Open the lock; None for a user who may not renew the snapshot, which the child reports."""
    try:
        try:
            os.mkdir(state)
            os.chmod(state, 0o755)  # noqa: S103 - as refresh makes it
        except FileExistsError:
            pass
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(f"{state}/{LOCK}", flags, 0o600)
    except OSError:
        return None


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _refresh(config: str, state: str, lock: int | None, wait: _Wait) -> None:
    """Run a refresh in a process of its own, and wait for its end."""
    # Not a pipe: nobody would read it after the create gives up.
    with open(os.memfd_create("refresh"), "r+b") as output:
        child = _started(config, state, lock, output)
        try:
            while child.poll() is None:
                wait.a_moment(lock)
        except GpushimError:
            child.returncode = 0  # it runs on; `subprocess` would warn, and wait for it
            raise
        if child.returncode == 0 or ensure.read(config, state) is not None:  # which may say what is wrong
            return
        _pass_on(state, config, wait.began)  # recorded by the child
        raise _why(child.returncode, _last_words(output.fileno()))


def _started(config: str, state: str, lock: int | None, output: BinaryIO) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    words, given = (command(), nothing) if lock is None else ([*command(), "--locked"], lock)
    environment = {"PATH": os.environ.get("PATH", policy.SYSTEM_PATH), "LC_ALL": "C.UTF-8"}
    environment |= {"GPUSHIM_CONFIG": config, "GPUSHIM_STATE": state}
    try:
        return subprocess.Popen(
            words, stdin=given, stdout=nothing, stderr=output, env=environment, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise scarce.lack(error) or GpushimError(f"gpushim refresh cannot be started: {error}", INVENTORY) from None


def _why(code: int, output: str) -> GpushimError:
    if code < 0:
        return GpushimError(f"gpushim refresh was ended by signal {-code}; run it by hand to see why", INVENTORY)
    if output:
        return GpushimError(output, code)
    return GpushimError(f"gpushim refresh failed with code {code} and did not say why; run it by hand", INVENTORY)


def _last_words(fd: int) -> str:
    size = os.fstat(fd).st_size
    tail = os.pread(fd, STDERR_LIMIT, max(0, size - STDERR_LIMIT))
    line = str(tail, "utf-8", "replace").strip().rpartition("\n")[2]
    return line[len(PREFIX) :] if line.startswith(PREFIX) else line
