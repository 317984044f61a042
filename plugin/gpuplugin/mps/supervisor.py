"""`gpushim-device-plugin --mps GROUP`: run the control daemon of a group of GPUs, for as long as there is the group.

Claims of the DRA driver have groups, too (of_claims.py): of MPS, or of GPUs with another time slice and no daemon.

A process of its own, under systemd as gpushim-mps@GROUP.service: the plugin that kubelet knows never waits for MPS,
and its end is none for clients. Whatever goes wrong ends it with a sentence; systemd starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from gpuplugin.devices.division import mps_groups
from gpuplugin.mps import compute_mode, folders, mps, of_claims, time_slice
from gpuplugin.mps.compute_mode import EXCLUSIVE_PROCESS
from gpuplugin.mps.control_daemon import ControlDaemon
from gpuplugin.mps.mps import Folders
from gpuplugin.mps.of_claims import describe
from gpuplugin.settings.resources import NAME
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, renew
from gpushim.inventory.procfs import sysfs_name
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

WATCH = 5.0  # seconds between questions to the daemon, and looks at the settings
POLL = 0.2  # seconds between looks at the file of claims
GONE = 5.0  # seconds that a killed process has to be gone
START = 300  # seconds that systemd gives a start, TimeoutStartSec of the unit


def supervise(name: str, read: Callable[[], Settings]) -> None:
    """Serve a group until it is gone from the settings and has no client, or a signal ends the process.

    Raises:
        GpushimError: there is no such group, it has a supervisor already, or its daemon cannot serve.
    """
    directories = Folders(system.state_dir(), name)
    first = _find_group(name, read, _snapshot())
    if not NAME.fullmatch(name) or (first is None and not os.path.isdir(directories.top)):
        if of_claims.NAME.fullmatch(name):
            return  # it has ended before this began
        raise _unknown_group(name, read)
    with _stops() as stopped, folders.hold(directories), folders.recording_problem(directories):
        _end_orphan(directories)
        group = first
        while group is not None:
            _serve(group, directories, read, stopped)
            if stopped(0):
                return
            group = _find_group(name, read, _snapshot())
        _clear(directories)
    if first is None and not of_claims.NAME.fullmatch(name):
        raise _unknown_group(name, read)
    logger.info("%s", f"{name} is no longer a group")


def _snapshot() -> Snapshot:
    """Return a snapshot that is true now, as a create gets it."""
    snapshot = renew.snapshot(system.config_path(), system.state_dir())
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    return snapshot


def _find_group(name: str, read: Callable[[], Settings], snapshot: Snapshot) -> MpsGroup | None:
    if of_claims.NAME.fullmatch(name):
        return of_claims.find(name)
    return next((group for group in mps_groups(snapshot, read()) if group.name == name), None)


def _unknown_group(name: str, read: Callable[[], Settings]) -> GpushimError:
    names = ", ".join(group.name for group in mps_groups(_snapshot(), read()))
    return GpushimError(
        f"there is no group of MPS called {quote(name)}; sharing.mps of the configuration file has {names or 'none'}",
        CONFIG,
    )


def _serve(
    group: MpsGroup, directories: Folders, read: Callable[[], Settings], stopped: Callable[[float], bool]
) -> None:
    """Run the daemon until a signal comes, or the group is another one and has no client."""
    snapshot, seconds = _snapshot(), policy.load(system.config_path())["refresh"]["deadline-seconds"]
    # Of a former supervisor; others may wait for it.
    if any(map(os.path.lexists, (directories.modes, directories.slices))):
        _restore(snapshot, directories, seconds, {gpu.uuid for gpu in group.gpus})
        notify(f"EXTEND_TIMEOUT_USEC={START}000000")
    if not _wait_for_gpus(group, directories, read, stopped):
        return
    snapshot = _snapshot()
    daemon = None if group.interval else ControlDaemon(snapshot, group, directories)
    slices = {gpu.uuid: group.interval for gpu in group.gpus if group.interval}
    try:
        compute_mode.set_modes(snapshot, slices, directories.slices, seconds, time_slice.ask)
        compute_mode.set_modes(
            snapshot, dict.fromkeys(group.exclusive, EXCLUSIVE_PROCESS), directories.modes, seconds
        )
        if daemon is None or daemon.start(stopped):
            pid = daemon.pid if daemon else 0
            replace(directories.state, json.dumps({**describe(group), "pid": pid, "daemon": _identity(pid)}).encode())
            with contextlib.suppress(FileNotFoundError):
                os.unlink(directories.problem)
            notify("READY=1", f"STATUS=serves {len(group.gpus)} GPUs")
            state = "MPS serves" if daemon else f"time slices are {time_slice.VALUES[group.interval]} for"
            logger.info("%s", f"{state} {group.name}: GPU {', '.join(gpu.uuid for gpu in group.gpus)}")
            _watch(daemon, snapshot, group, directories, read, stopped)
    finally:
        _close(directories)
        if daemon:
            daemon.end()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directories.state)
        try:
            _restore(snapshot, directories, seconds, total=compute_mode.ENDING)
        except GpushimError as error:  # the file stays, for the next supervisor
            logger.warning("%s", f"{error}; the next start of {group.name} tries again to put it back")


def _wait_for_gpus(
    group: MpsGroup, directories: Folders, read: Callable[[], Settings], stopped: Callable[[float], bool]
) -> bool:
    """Wait until the previous group has restored its GPUs; return False if this group has changed meanwhile.

    Of claims the record knows who has what.
    """
    last = ""
    while not of_claims.NAME.fullmatch(group.name):
        unrestored = mps.unrestored(directories.state_dir, [group])
        former = next((unrestored[gpu.uuid] for gpu in group.gpus if gpu.uuid in unrestored), "")
        if not former:
            break
        reason = mps.unfinished(former)
        notify(f"EXTEND_TIMEOUT_USEC={START}000000", f"STATUS=waits: {reason}")
        if former != last:
            logger.warning("%s", f"{group.name} waits: {reason}")
        last = former
        if stopped(WATCH) or _find_group(group.name, read, _snapshot()) != group:
            return False
    return True


def _watch(
    daemon: ControlDaemon | None,
    begun: Snapshot,
    group: MpsGroup,
    directories: Folders,
    read: Callable[[], Settings],
    stopped: Callable[[float], bool],
) -> None:
    last_error, of_claim = "", bool(of_claims.NAME.fullmatch(group.name))
    while not (_wait_for_claims(stopped) if of_claim else stopped(WATCH)):
        folders.shorten(directories)
        if daemon:
            daemon.check()
        snapshot = ensure.read(system.config_path(), system.state_dir())
        if snapshot is None or snapshot["error"]:  # which the plugin sees to; it says nothing about the settings
            if not of_claim:
                continue
            snapshot = begun
        try:
            current = _find_group(group.name, read, snapshot)
        except GpushimError as error:
            if str(error) != last_error:
                logger.warning("%s", f"{group.name} stays as it is: {error}")
            last_error = str(error)
            continue
        changed = current is None or describe(current) != describe(group)
        if changed and (of_claim or daemon is None or not daemon.has_clients()):
            return  # a claim's end is the end of its containers
        if daemon is None and _driver_identity(group, snapshot) != _driver_identity(group, begun):
            return  # a driver that was loaded again knows nothing of time slices


def _driver_identity(group: MpsGroup, snapshot: Snapshot) -> object:
    """Return a value that differs when the driver of a group's GPUs was loaded again, or bound to them."""
    names = {gpu["uuid"]: sysfs_name(gpu["pci"]) for gpu in snapshot["gpus"]}
    facts = snapshot["stamp"]
    return facts["module"], [facts["gpus"].get(names.get(gpu.uuid, "")) for gpu in group.gpus]


def _wait_for_claims(stopped: Callable[[float], bool]) -> bool:
    """Wait WATCH seconds, or until the file of claims changes: the GPU of one that ends is another's soon."""
    version, deadline = of_claims.version(), time.monotonic() + WATCH
    while not stopped(POLL):
        if of_claims.version() != version or time.monotonic() > deadline:
            return False
    return True


def _restore(
    snapshot: Snapshot,
    directories: Folders,
    seconds: float,
    but: Collection[str] = (),
    total: float = compute_mode.TOTAL,
) -> None:
    """Restore the compute modes and time slices of GPUs, but of some."""
    try:
        compute_mode.restore(snapshot, directories.modes, seconds, but=but, total=total)
    finally:
        compute_mode.restore(snapshot, directories.slices, seconds, time_slice.ask, but, total)


def _clear(directories: Folders) -> None:
    """Remove what an ended group has left, after its GPUs are restored."""
    seconds = policy.load(system.config_path())["refresh"]["deadline-seconds"]
    _restore(_snapshot(), directories, seconds, total=compute_mode.ENDING)
    folders.remove(directories)


def _close(directories: Folders) -> None:
    """Close the group to new clients; what has still to end stays written for the next supervisor."""
    state = ensure.own(directories.state)
    try:
        if state:
            replace(directories.state, json.dumps({key: state[key] for key in ("gpus", "pid", "daemon")}).encode())
    except OSError:  # /run is full, which keeps nothing from its end
        os.unlink(directories.state)


def _end_orphan(directories: Folders) -> None:
    """End a daemon whose supervisor was killed; by the time of its start, for ids of processes come again."""
    state = ensure.own(directories.state)
    pid, identity = state.get("pid"), state.get("daemon")
    if isinstance(pid, int) and pid > 1 and identity and _identity(pid) == identity:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE
        while _identity(pid) == identity and time.monotonic() < deadline:
            time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(directories.state)


def _identity(pid: int) -> str:
    """Return what tells a process from others that have its id later, or before a boot; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
            return "" if fields[0] in ("Z", "X") else f"{system.boot() or ''} {fields[19]}"
    except (OSError, IndexError):
        return ""


@contextlib.contextmanager
def _stops() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits so many seconds, and returns whether a signal has come that ends this process.

    The end of a child, and SIGHUP, end a wait too.
    """
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    ends = (signal.SIGTERM, signal.SIGINT)
    ended: list[int] = []

    def come() -> None:
        with contextlib.suppress(BlockingIOError):
            ended.extend(number for number in reading.recv(4096) if number in ends)

    def wait(seconds: float) -> bool:
        come()  # and what is known: each question to the daemon is a child that has ended
        if not ended:
            select.select([reading], [], [], seconds)
            come()
        return bool(ended)

    before = {number: signal.signal(number, lambda *_: None) for number in (*ends, signal.SIGHUP, signal.SIGCHLD)}
    old = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    try:
        yield wait
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        reading.close()
        writing.close()


def notify(*lines: str) -> None:
    """Send lines to systemd, where it asks for it (sd_notify(3))."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] in ("/", "@"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto("\n".join(lines).encode(), "\0" + name[1:] if name[0] == "@" else name)
