"""`gpushim-device-plugin --mps GROUP`: run the control daemon of a group of GPUs, for as long as there is the group.

A process of its own, under systemd as gpushim-mps@GROUP.service: the plugin that kubelet knows never waits for MPS,
and its end is none for clients. Whatever goes wrong ends it with a sentence; systemd starts it again.
Out of scope: commands of the daemon (control_daemon.py), what the plugin makes of its state (mps.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
from typing import TYPE_CHECKING

from gpuplugin.devices.division import mps_groups
from gpuplugin.mps import compute_mode
from gpuplugin.mps.control_daemon import ControlDaemon, program
from gpuplugin.mps.mps import Place, described
from gpuplugin.settings.resources import NAME
from gpushim.config import policy
from gpushim.engines.processes import ask
from gpushim.ground import system
from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, renew
from gpushim.paths import lock, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuplugin.devices.division import MpsGroup
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

WATCH = 5.0  # seconds between questions to the daemon, and looks at the settings
LOCKED = 2.0  # seconds to wait for the lock, which the plugin takes for a moment to see whether somebody has it
GONE = 5.0  # seconds that a killed process has to be gone
LOG = 4 << 20  # bytes of a log: each client makes it longer, and /run is memory
# The memory of clients' shared files counts for their cgroups only as long as those live.
SHM = "size=10%,nr_inodes=100k,mode=1777,nosuid,nodev,noexec"


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
        raise _unknown(name, read)
    with _stops() as stopped, _alone(place):
        _end_left(place)
        group = found
        while group is not None:
            _serve(group, place, read, stopped)
            if stopped(0):
                return
            group = _group(name, read, _snapshot())
        _clear(place)
    if found is None:
        raise _unknown(name, read)
    logger.info("%s", f"{name} is no longer an MPS group")


def _snapshot() -> Snapshot:
    """Wait for a snapshot that is true now, as a create does."""
    found = renew.snapshot(system.config_path(), system.state_dir())
    if found["error"]:
        raise GpushimError(found["error"]["sentence"], found["error"]["code"])
    return found


def _group(name: str, read: Callable[[], Settings], snapshot: Snapshot) -> MpsGroup | None:
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
    daemon = ControlDaemon(snapshot, group, place)
    try:
        compute_mode.take(snapshot, [gpu.uuid for gpu in group.gpus], place.modes, seconds)
        if daemon.start(stopped):
            state = {**described(group), "pid": daemon.pid, "daemon": _identity(daemon.pid)}
            replace(place.state, json.dumps(state).encode())
            notify("READY=1", f"STATUS=serves {len(group.gpus)} GPUs")
            logger.info("%s", f"MPS serves {group.name}: GPU {', '.join(str(gpu.index) for gpu in group.gpus)}")
            _watch(daemon, group, place, read, stopped)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.state)
        daemon.end()
        try:
            compute_mode.give_back(snapshot, place.modes, seconds)
        except GpushimError as error:  # the file stays, for the next supervisor
            logger.warning("%s", f"{error}; the next start of {group.name} tries again to put it back")


def _watch(
    daemon: ControlDaemon,
    group: MpsGroup,
    place: Place,
    read: Callable[[], Settings],
    stopped: Callable[[float], bool],
) -> None:
    last_error = ""
    while not stopped(WATCH):
        _shorten(place.log)
        daemon.check()
        snapshot = ensure.read(system.config_path(), system.state_dir())
        if snapshot is None or snapshot["error"]:  # which the plugin sees to; it says nothing about the group
            continue
        try:
            now = _group(group.name, read, snapshot)
        except GpushimError as error:
            if str(error) != last_error:
                logger.warning("%s", f"{group.name} stays as it is: {error}")
            last_error = str(error)
            continue
        if (now is None or described(now) != described(group)) and not daemon.has_clients():
            return


def _shorten(folder: str) -> None:
    """Empty logs that are too long; who writes one goes on where he was, and the hole before that is no memory."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if status.st_mode & trust.FILE_TYPE == trust.REGULAR and status.st_blocks * 512 > LOG:
                    os.ftruncate(fd, 0)
            finally:
                os.close(fd)


@contextlib.contextmanager
def _alone(place: Place) -> Iterator[None]:
    """Make the group's directories, and hold its lock."""
    os.umask(0o022)  # clients of all users look for the pipes
    for folder in (f"{place.state_dir}/mps", place.top, place.pipe, place.log, place.private, place.shm):
        os.makedirs(folder, 0o700 if folder == place.private else 0o755, exist_ok=True)
        if folder != place.shm and not trust.ours(folder):
            raise GpushimError(f"{folder} is not root's alone; remove it", INVENTORY)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(place.lock, LOCKED))
        except GpushimError:
            if lock.is_held(place.lock):
                raise GpushimError(f"{place.group} has a supervisor that runs; stop it first", INVENTORY) from None
            raise
        _mount(place.shm)
        yield


def _mount(folder: str) -> None:
    """Give the group's clients a /dev/shm with a limit; one that is there stays, for containers may have it."""
    if not os.path.ismount(folder):
        _run("mount", "-t", "tmpfs", "-o", SHM, "gpushim-mps", folder)


def _run(name: str, *words: str) -> None:
    done = ask.program([program(name), *words])
    if done.code != 0:
        raise GpushimError(f"{name} of {words[-1]} fails: {quote(done.last)}", INVENTORY)


def _clear(place: Place) -> None:
    """Remove what a group has left, that is no more: first the compute modes are what they were."""
    seconds = policy.load(system.config_path())["refresh"]["deadline-seconds"]
    compute_mode.give_back(_snapshot(), place.modes, seconds)
    with contextlib.suppress(GpushimError):
        _run("umount", "--lazy", place.shm)
    shutil.rmtree(place.top, ignore_errors=True)


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
