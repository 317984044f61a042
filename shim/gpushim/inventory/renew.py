"""Renew the snapshot for a create that found it stale: ask the service for a refresh, or start one.

One refresh runs at a time, under the lock. The service is asked first, as a create may have the limits of the tenant
whose container it makes. A client of STATE/refresh.sock (gpushim-refresh.socket) sends its paths of config.toml and
state (`question`); the service answers AGREED if they are its own, and closes the connection after a refresh. The
result is in the snapshot or in `failure`'s file.

Where no service has these paths (a checkout, rootless engines) or none answers, the create starts a child. It
inherits the lock and goes on when the create gives up, so that a host that takes longer than an engine waits gets its
snapshot in the end: hence its own session, working directory and descriptors. If an engine ends it with the create (a
stopped unit that runs `podman run`), the kernel releases the lock and the next create starts another.
Root's child leaves the cgroups that it comes from, as all wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

from gpushim.config import policy
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushim.ground.model import Snapshot

LOCK, SOCKET = "lock", "refresh.sock"  # in the state directory
UNIT = "gpushim-refresh.socket"
AGREED = b"y"
AGREEMENT = 10.0  # seconds for the service to start, which takes half a second on a host at rest, and to agree
STDERR_LIMIT = 8192  # bytes at the end of the child's stderr
WHAT_LIMIT = 256  # bytes of what a refresh is waiting for
ATTEMPTS = 2
PAUSE = 0.01  # seconds between two attempts to lock
CGROUPS = ("cgroup", "cgroup2")  # file systems
LEAST = 1  # second that everyone waits before config.toml is read for the deadline


def snapshot(config: str, state: str) -> Snapshot:
    """Return a snapshot that is true now.

    Raises:
        GpushimError: the refresh failed (its own sentence and code), or takes longer than a create waits.
    """
    saved = ensure.read(config, state)
    if saved is not None:
        return saved
    wait, lock = _Wait(config), _open_lock(state)
    try:
        for _ in range(ATTEMPTS):
            wait = _ask_service(config, state, lock, wait)
            # Before the lock, which a create that is slow or frozen would keep.
            saved = _read_outcome(config, state, wait)
            while saved is None and lock is not None and not _take_lock(lock):
                wait.pause(lock)
            saved = saved or _read_outcome(config, state, wait)
            if saved is not None:
                return saved
            _refresh(config, state, lock, wait)
            saved = ensure.read(config, state)  # before the service is asked once more
            if saved is not None:
                return saved
    finally:
        if lock is not None:
            os.close(lock)  # a child that still runs keeps it
    raise GpushimError("the host's GPUs keep changing while they are listed; try again in a moment", INVENTORY)


def command() -> list[str]:
    """Return the command line of the child: this Python, isolated, with the stub beside this package."""
    stub = __file__.rpartition("/inventory/")[0] + "/create/stub.py"
    return [sys.executable or "/usr/bin/python3", "-IB", stub, "refresh"]


def _read_outcome(config: str, state: str, wait: _Wait) -> Snapshot | None:
    """Return the snapshot that another refresh has made, None if there was none; raise the error of a failed one."""
    saved = ensure.read(config, state)
    if saved is None:
        failure.pass_on(state, config, wait.began)
    return saved


class _Wait:
    """A create's wait, up to the deadline of config.toml."""

    def __init__(self, config: str) -> None:
        self.config, self.began, self.seconds = config, failure.now(), 0

    def pause(self, lock: int | None) -> None:
        """Sleep; raise after too long, with what the refresh is waiting for."""
        waited = (failure.now() - self.began) / 1e9
        if waited > LEAST and not self.seconds:
            self.seconds = _deadline(self.config)
        if self.seconds and waited > self.seconds:
            task = b"" if lock is None else os.pread(lock, WHAT_LIMIT, 0)
            raise GpushimError(
                f"listing the host's GPUs has waited {self.seconds} s for "
                f"{str(task, 'utf-8', 'replace').strip() or 'its process'}, and goes on without this container: try "
                f"again later; {failure.SLOW}; deadline-seconds under [refresh] in {self.config} is how long a start "
                "waits",
                INVENTORY,
            )
        time.sleep(PAUSE)


def _ask_service(config: str, state: str, lock: int | None, wait: _Wait) -> _Wait:
    """Ask the service for a refresh, if there is one; returns the wait for a child.

    That begins anew if the service hangs without the lock.
    """
    try:
        served(config, state, lambda: wait.pause(lock))
    except GpushimError:
        if lock is None or not _take_lock(lock):
            raise
        return _Wait(config)
    return wait


def _deadline(config: str) -> int:
    try:
        return int(policy.load(config)["refresh"]["deadline-seconds"])
    except GpushimError:  # the refresh reports it
        return int(policy.defaults()["refresh"]["deadline-seconds"])


def _open_lock(state: str) -> int | None:
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


def _take_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _refresh(config: str, state: str, lock: int | None, wait: _Wait) -> None:
    """Run a refresh in a process of its own, and wait for its end."""
    # Not a pipe: nobody would read it after the create gives up.
    with open(os.memfd_create("refresh"), "r+b") as output:
        child = _start_child(config, state, lock, output)
        _leave_cgroups(child.pid)
        try:
            while child.poll() is None:
                wait.pause(lock)
        except GpushimError:
            child.returncode = 0  # it runs on; `subprocess` would warn, and wait for it
            raise
        if child.returncode == 0 or ensure.read(config, state) is not None:  # which may say what is wrong
            return
        failure.pass_on(state, config, wait.began)  # recorded by the child
        last = failure.tail(output.fileno(), STDERR_LIMIT).strip().rpartition("\n")[2]
        raise _child_error(child.returncode, last.removeprefix(failure.PREFIX))


def _start_child(config: str, state: str, lock: int | None, output: BinaryIO) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    words, stdin = (command(), null) if lock is None else ([*command(), "--locked"], lock)
    environment = {"PATH": os.environ.get("PATH", policy.SYSTEM_PATH), "LC_ALL": "C.UTF-8"}
    environment |= {"GPUSHIM_CONFIG": config, "GPUSHIM_STATE": state}
    try:
        return subprocess.Popen(
            words, stdin=stdin, stdout=null, stderr=output, env=environment, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise failure.scarce(error) or GpushimError(
            f"gpushim refresh cannot be started: {error}", INVENTORY
        ) from None


def _leave_cgroups(pid: int) -> None:
    """Take a refresh, for which all wait, out of cgroups with a tenant's limits, where this process may."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts,
    ):
        # What is mounted of a part of the tree, as a tenant's own, leads into that.
        rows = [line.partition(" - ")[::2] for line in mounts if line.split()[3] == "/"]
        tops = [(left.split()[4], *right.split()[::2]) for left, right in rows]
        for folder in [folder for folder, kind, options in tops if kind in CGROUPS and "name=" not in options]:
            with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs", "w", encoding="ascii") as processes:
                processes.write(str(pid))


def _child_error(code: int, output: str) -> GpushimError:
    if code < 0:
        return GpushimError(f"gpushim refresh was ended by signal {-code}; run it by hand to see why", INVENTORY)
    if output:
        return GpushimError(output, code)
    return GpushimError(f"gpushim refresh failed with code {code} without giving a reason; run it by hand", INVENTORY)


def question(config: str, state: str) -> bytes:
    """Return the message that a client with these paths sends."""
    return os.fsencode(f"{config}\0{state}")


def served(config: str, state: str, waiting: Callable[[], None]) -> bool:
    """Ask the service for a refresh, and wait for its end; returns whether a service has agreed.

    Meanwhile `waiting` is called again and again; it sleeps a moment, and may raise.
    """
    if not trust.ours(state):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(f"{state}/{SOCKET}")
            asking.send(question(config, state))
        except OSError:  # nobody listens, or too many wait; root listens, and this is another user
            return False
        agreed, until = False, time.monotonic() + AGREEMENT
        while agreed or time.monotonic() < until:
            try:
                answer = asking.recv(len(AGREED))
            except BlockingIOError:
                waiting()
                continue
            except OSError:
                return agreed
            if not answer:
                return agreed
            agreed = True
        return False
