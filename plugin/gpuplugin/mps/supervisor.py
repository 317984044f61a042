"""`gpushim-device-plugin --mps GROUP`: run the control daemon of a group of GPUs, for as long as there is the group.

Claims of the DRA driver have groups, too (of_claims.py): of MPS, or of GPUs with another time slice and no daemon.

A process of its own, under systemd as gpushim-mps@GROUP.service: the plugin that kubelet knows never waits for MPS,
and its end is none for clients. Whatever goes wrong ends it with a sentence; systemd starts it again.
Out of scope: commands of the daemon (control_daemon.py), what the plugin makes of its state (mps.py).
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
from gpuplugin.mps.mps import Place
from gpuplugin.mps.of_claims import described
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
    """Serve a group until it is gone from the settings and has no client, or a signal ends this.

    Args:
        name: of the group.
        read: finds out which settings are in force.

    Raises:
        GpushimError: there is no such group, it has a supervisor already, or its daemon cannot serve.
    """
    place = Place(system.state_dir(), name)
    found = _group(name, read, _snapshot())
    if not NAME.fullmatch(name) or (found is None and not os.path.isdir(place.top)):
        if of_claims.NAME.fullmatch(name):
            return  # it has ended before this began
        raise _unknown(name, read)
    with _stops() as stopped, folders.alone(place), folders.leaving_word(place):
        _end_left(place)
        group = found
        while group is not None:
            _serve(group, place, read, stopped)
            if stopped(0):
                return
            group = _group(name, read, _snapshot())
        _clear(place)
    if found is None and not of_claims.NAME.fullmatch(name):
        raise _unknown(name, read)
    logger.info("%s", f"{name} is no longer a group")


def _snapshot() -> Snapshot:
    """Wait for a snapshot that is true now, as a create does."""
    found = renew.snapshot(system.config_path(), system.state_dir())
    if found["error"]:
        raise GpushimError(found["error"]["sentence"], found["error"]["code"])
    return found


def _group(name: str, read: Callable[[], Settings], snapshot: Snapshot) -> MpsGroup | None:
    """Return a group as a claim has it, or as the settings have it in the snapshot."""
    if of_claims.NAME.fullmatch(name):
        return of_claims.find(name)
    return next((one for one in mps_groups(snapshot, read()) if one.name == name), None)


def _unknown(name: str, read: Callable[[], Settings]) -> GpushimError:
    names = ", ".join(one.name for one in mps_groups(_snapshot(), read()))
    return GpushimError(
        f"there is no group of MPS called {quote(name)}; sharing.mps of the configuration file has {names or 'none'}",
        CONFIG,
    )


def _serve(group: MpsGroup, place: Place, read: Callable[[], Settings], stopped: Callable[[float], bool]) -> None:
    """Run the daemon until a signal comes, or the group is another one and has no client."""
    snapshot, seconds = _snapshot(), policy.load(system.config_path())["refresh"]["deadline-seconds"]
    if any(map(os.path.lexists, (place.modes, place.slices))):  # of a former supervisor; others may wait for it
        _put_back(snapshot, place, seconds, {gpu.uuid for gpu in group.gpus})
        notify(f"EXTEND_TIMEOUT_USEC={START}000000")
    if not _is_free(group, place, read, stopped):
        return
    snapshot = _snapshot()
    daemon = None if group.interval else ControlDaemon(snapshot, group, place)
    slices = {gpu.uuid: group.interval for gpu in group.gpus if group.interval}
    try:
        compute_mode.take(snapshot, slices, place.slices, seconds, time_slice.ask)
        compute_mode.take(snapshot, dict.fromkeys(group.exclusive, EXCLUSIVE_PROCESS), place.modes, seconds)
        if daemon is None or daemon.start(stopped):
            pid = daemon.pid if daemon else 0
            replace(place.state, json.dumps({**described(group), "pid": pid, "daemon": _identity(pid)}).encode())
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.problem)
            notify("READY=1", f"STATUS=serves {len(group.gpus)} GPUs")
            what = "MPS serves" if daemon else f"time slices are {time_slice.VALUES[group.interval]} for"
            logger.info("%s", f"{what} {group.name}: GPU {', '.join(gpu.uuid for gpu in group.gpus)}")
            _watch(daemon, snapshot, group, place, read, stopped)
    finally:
        _leave(place)
        if daemon:
            daemon.end()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.state)
        try:
            _put_back(snapshot, place, seconds, whole=compute_mode.ENDING)
        except GpushimError as error:  # the file stays, for the next supervisor
            logger.warning("%s", f"{error}; the next start of {group.name} tries again to put it back")


def _is_free(group: MpsGroup, place: Place, read: Callable[[], Settings], stopped: Callable[[float], bool]) -> bool:
    """Wait until its GPUs are what they were before another group of the settings had them; say whether to go on.

    Of claims the ledger knows who has what.
    """
    last = ""
    while not of_claims.NAME.fullmatch(group.name):
        left = mps.unrestored(place.state_dir, [group])
        other = next((left[gpu.uuid] for gpu in group.gpus if gpu.uuid in left), "")
        if not other:
            break
        why = mps.unfinished(other)
        notify(f"EXTEND_TIMEOUT_USEC={START}000000", f"STATUS=waits: {why}")
        if other != last:
            logger.warning("%s", f"{group.name} waits: {why}")
        last = other
        if stopped(WATCH) or _group(group.name, read, _snapshot()) != group:
            return False
    return True


def _watch(
    daemon: ControlDaemon | None,
    begun: Snapshot,
    group: MpsGroup,
    place: Place,
    read: Callable[[], Settings],
    stopped: Callable[[float], bool],
) -> None:
    last_error, of_claim = "", bool(of_claims.NAME.fullmatch(group.name))
    while not (_waits_for_claims(stopped) if of_claim else stopped(WATCH)):
        folders.shorten(place)
        if daemon:
            daemon.check()
        snapshot = ensure.read(system.config_path(), system.state_dir())
        if snapshot is None or snapshot["error"]:  # which the plugin sees to; it says nothing about the settings
            if not of_claim:
                continue
            snapshot = begun
        try:
            now = _group(group.name, read, snapshot)
        except GpushimError as error:
            if str(error) != last_error:
                logger.warning("%s", f"{group.name} stays as it is: {error}")
            last_error = str(error)
            continue
        changed = now is None or described(now) != described(group)
        if changed and (of_claim or daemon is None or not daemon.has_clients()):
            return  # a claim's end is the end of its containers
        if daemon is None and _loaded(group, snapshot) != _loaded(group, begun):
            return  # a driver that was loaded again knows nothing of time slices


def _loaded(group: MpsGroup, snapshot: Snapshot) -> object:
    """Return what is another thing when the driver of a group's GPUs was loaded again, or bound to them."""
    names = {gpu["uuid"]: sysfs_name(gpu["pci"]) for gpu in snapshot["gpus"]}
    facts = snapshot["stamp"]
    return facts["module"], [facts["gpus"].get(names.get(gpu.uuid, "")) for gpu in group.gpus]


def _waits_for_claims(stopped: Callable[[float], bool]) -> bool:
    """Wait WATCH seconds, or until the file of claims changes: the GPU of one that ends is another's soon."""
    before, late = of_claims.version(), time.monotonic() + WATCH
    while not stopped(POLL):
        if of_claims.version() != before or time.monotonic() > late:
            return False
    return True


def _put_back(
    snapshot: Snapshot,
    place: Place,
    seconds: float,
    but: Collection[str] = (),
    whole: float = compute_mode.WHOLE,
) -> None:
    """Let GPUs have the compute modes and time slices that they had before, but some."""
    try:
        compute_mode.give_back(snapshot, place.modes, seconds, but=but, whole=whole)
    finally:
        compute_mode.give_back(snapshot, place.slices, seconds, time_slice.ask, but, whole)


def _clear(place: Place) -> None:
    """Remove what a group has left, that is no more: first the GPUs are what they were."""
    seconds = policy.load(system.config_path())["refresh"]["deadline-seconds"]
    _put_back(_snapshot(), place, seconds, whole=compute_mode.ENDING)
    folders.remove(place)


def _leave(place: Place) -> None:
    """Let no new client use the group; what has still to end stays written for the next supervisor."""
    found = ensure.own(place.state)
    try:
        if found:
            replace(place.state, json.dumps({key: found[key] for key in ("gpus", "pid", "daemon")}).encode())
    except OSError:  # /run is full, which keeps nothing from its end
        os.unlink(place.state)


def _end_left(place: Place) -> None:
    """End a daemon whose supervisor was killed; by the time of its start, for ids of processes come again."""
    left = ensure.own(place.state)
    pid, was = left.get("pid"), left.get("daemon")
    if isinstance(pid, int) and pid > 1 and was and _identity(pid) == was:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        late = time.monotonic() + GONE
        while _identity(pid) == was and time.monotonic() < late:
            time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place.state)


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
    """Yield what waits so many seconds, and says whether a signal has come that ends this.

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
    """Tell systemd something, where it asks for it (sd_notify(3))."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] in ("/", "@"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto("\n".join(lines).encode(), "\0" + name[1:] if name[0] == "@" else name)
