"""Bring the snapshot up to date: survey the host, save the snapshot, publish its CDI spec.

Runs as a child of a create or of the command line, because NVML can hang: a deadline ends the whole process.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import sys
from typing import TYPE_CHECKING

from gpushim.cdi.generate import publish
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import earlier, ensure, failure, modules, nodes, nvml, renew, save, survey
from gpushim.inventory.failure import deadline, say
from gpushim.mig import cut_request
from gpushim.oci.selection import SHOWN, unusable
from gpushim.paths import trust
from gpushim.refresh import plugin_requests, plugin_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from gpushim.ground.model import DriverPolicy, Identity, Policy, Snapshot

LONGEST = 300  # seconds for a refresh that no one waits for; the slowest hosts are known to need 30
ROUNDS = 2
PLUGIN_SECONDS = 10  # for the device plugin to see a snapshot, at which it looks every 3 s at least
ATTEMPTS = 3  # more, when the state directory is removed meanwhile
# Seconds before the end of a snapshot's life in which a unit renews it, so that no create has to: the timer's period,
# its accuracy, and the wait until nothing changes.
AHEAD = 90


def main(argv: list[str]) -> NoReturn:
    """Refresh the snapshot, report errors on stderr, and exit.

    Of `argv`, "--force" renews a true snapshot too; "--locked" says that standard input is the lock, taken by the
    create that started this; "--unattended" is for a start without a create (keep.py).
    """
    try:
        if "--unattended" in argv:
            snapshot = unattended(True)
        else:
            snapshot = refresh("--force" in argv, lock=_take_stdin() if "--locked" in argv else None)
    except GpushimError as error:
        say(str(error))
        sys.exit(error.exit_code)
    if snapshot and snapshot["error"]:
        say(snapshot["error"]["sentence"])
        sys.exit(snapshot["error"]["code"])
    sys.exit(0)


class ReleasedError(Exception):
    """The device plugin has released the GPUs."""


def refresh(
    force: bool = False,
    load: bool = True,
    patient: bool = False,
    lock: int | None = None,
    accept: bool = False,
    early: float = 0,
    yielding: bool = False,
    people: bool = False,
) -> Snapshot:
    """Bring the snapshot up to date, one process at a time, or end with INVENTORY when that takes too long.

    Args:
        force: renew the snapshot even if it is true.
        load: load missing kernel modules, if the policy allows it.
        patient: wait up to LONGEST instead of the policy's deadline.
        lock: the state directory's lock, if it is taken already; implies the long wait.
        accept: number the GPUs anew in NVML's order, if NVML can be used; goes with `force`.
        early: seconds that a true snapshot must still hold, or it is renewed.
        yielding: open no GPU while the device plugin has released them.
        people: log for a reader at a terminal, whatever the policy's form of it.

    Raises:
        GpushimError: the configuration is wrong, or the state directory cannot be trusted or written.
        ReleasedError: the device plugin has released the GPUs, and `yielding`.
    """
    config, state = system.config_path(), system.state_dir()
    ahead = None if force else early
    with failure.recorded(state, config) as record_failure:
        identity = trust.identity(config)  # before it is read: a later change makes the snapshot stale
        settings = policy.load(config)
        logs.start(settings["log"]["format"], settings["log"]["level"], people)
        seconds = settings["refresh"]["deadline-seconds"]
        if patient or lock is not None:
            seconds = max(seconds, LONGEST)
        hung = earlier.HungGpus(state)
        hung_unless_accepted = None if accept else hung
        with deadline(seconds, config, record_failure, hung.added) as waiting:
            for _ in range(ATTEMPTS):
                # The directory was removed, and maybe made again.
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    return _renew(
                        config, identity, settings, waiting, lock, load, ahead, hung_unless_accepted, yielding
                    )
                lock = None  # it is gone with the directory
            return _renew(config, identity, settings, waiting, lock, load, ahead, hung_unless_accepted, yielding)


def unattended(load: bool) -> Snapshot | None:
    """Bring the snapshot up to date as the units do: if the driver has changed, once it has stopped changing.

    The device plugin's requests are served first, and one for MIG instances last. A snapshot that holds for a while
    longer, as in most of the timer's runs, is left as it is. A change during the survey leads to another survey, as
    systemd does not watch while the unit runs.

    Returns:
        the snapshot; None while the device plugin has released the GPUs.

    Raises:
        GpushimError: as `refresh`; or the driver's module is being unloaded.
    """
    config, state = system.config_path(), system.state_dir()
    settings = policy.load(config)
    logs.start(settings["log"]["format"], settings["log"]["level"])
    force = plugin_requests.serve(state)
    for _ in range(ROUNDS):
        root = policy.load(config)["driver"]["root"]
        proc = ensure.proc_dir(root)
        true = _read_saved(config, state, AHEAD) or modules.untouched(ensure.last(config, state)[0], proc)
        if not true or (load and modules.missing(proc)):
            modules.wait(root, proc)
        try:
            snapshot = refresh(force, load=load, patient=True, early=AHEAD, yielding=True)
        except ReleasedError:
            return None
        if ensure.read(config, state) is not None:
            break
    if cut_request.read_open(state):
        from gpushim.mig import cut_answer  # most are asked for none

        cut_answer.give(state, LONGEST, lambda: refresh(True, load=load, patient=True))
    return snapshot


def problem(snapshot: Snapshot) -> str:
    """Return what failed and may succeed the next time, or ""."""
    failed = [note for note in snapshot["notes"] if note.startswith(nvml.FAILS)]
    return next(iter([*unusable(snapshot), *failed]), "")


def _read_saved(config: str, state: str, ahead: float) -> Snapshot | None:
    """Return the saved snapshot if it is true for `ahead` more seconds."""
    snapshot = ensure.read(config, state)
    return snapshot if snapshot is not None and ensure.alive(snapshot, ahead) else None


def _renew(
    config: str,
    identity: Identity | None,
    settings: Policy,
    waiting: Callable[[str], None],
    lock: int | None,
    load: bool,
    ahead: float | None,
    hung: earlier.HungGpus | None,
    yielding: bool,
) -> Snapshot:
    """Survey the host under the lock, unless a saved snapshot holds for `ahead` more seconds (None: in any case).

    GPUs in `hung` are not asked; None: all are, and they are numbered anew in NVML's order.
    """
    state = system.state_dir()
    save.prepare(state, config)
    waiting(f"another refresh, which holds {state}/{renew.LOCK}")
    with _hold_lock(f"{state}/{renew.LOCK}", lock, waiting) as telling:
        # Under the lock, for which the releasing plugin waits: an earlier refresh may still have GPUs to open.
        if yielding and os.path.lexists(f"{state}/{plugin_requests.RELEASED}"):
            raise ReleasedError
        hung_gpus = hung.read() if hung else []
        notes = _complete(settings["driver"], load, telling, hung_gpus)
        saved = None if ahead is None else _read_saved(config, state, ahead)
        if saved is not None:  # the other refresh did it
            _warn(notes)
            _publish(saved)  # its spec may have been removed since, or another refresh killed before it removed one
            return saved
        snapshot = _survey(config, settings, _hide_gpus(telling, settings), hung_gpus, hung is None)
        if lock is not None and (lack := failure.among(snapshot["notes"])):
            raise lack  # rather than have it be everybody's
        snapshot["stamp"]["config"] = identity
        snapshot["notes"] += notes
        notes += _save(state, snapshot)
    if snapshot["error"]:  # the caller reports it; the snapshot's notes follow from it
        _warn(notes)
        return snapshot
    _warn(snapshot["notes"])
    logs.logger.info("%d GPUs and %d MIG instances listed", len(snapshot["gpus"]), len(snapshot["mig"]))
    return snapshot


def _save(state: str, snapshot: Snapshot) -> list[str]:
    """Save a snapshot and its CDI spec; returns the notes about CDI, which the snapshot has then too."""
    earlier.save_indices(state, snapshot)  # before anybody goes by them
    save.for_hook(snapshot)
    published = copy.copy(snapshot)
    if not snapshot["error"]:
        lacking = _publish(published)  # first: readers of the snapshot go by its spec
    save.save(state, snapshot)
    if snapshot["error"]:
        lacking = _publish(published)  # last: until the snapshot is seen, devices of the spec are still given out
    snapshot["notes"] = published["notes"]  # what CDI lacks is no reason for what a container does not get
    return lacking


def _publish(snapshot: Snapshot) -> list[str]:
    """Write the CDI spec, or remove it once the device plugin's devices are unhealthy; return notes."""
    before = {*snapshot["notes"]}
    late: list[str] = []

    def plugin_first() -> None:
        if not plugin_socket.wait_for_unhealthy(system.state_dir(), PLUGIN_SECONDS):
            late.append(
                "the device plugin has not said that its devices are unhealthy, so kubelet may still give pods what "
                "has no CDI spec; its log says why"
            )

    publish.on_refresh(snapshot, plugin_first)
    return [*late, *(note for note in snapshot["notes"] if note not in before)]


def _survey(
    config: str, settings: Policy, waiting: Callable[[str], None], hung: list[earlier.Hung], accept: bool
) -> Snapshot:
    """Survey the host with the settled indices, or with NVML's order if that is to be accepted."""
    snapshot = survey.survey(config, settings, waiting) if accept else None
    if snapshot is None or snapshot["source"] != "nvml":
        snapshot = survey.survey(config, settings, waiting, earlier.settled(system.state_dir()), hung)
    return snapshot


def _hide_gpus(telling: Callable[[str], None], settings: Policy) -> Callable[[str], None]:
    """Return `telling` without the GPU's name where refusals must not name devices of the host."""
    if settings["requests"]["list-devices-in-refusals"]:
        return telling
    return lambda task: telling(f"the driver to answer ({SHOWN} for which GPU)")


def _complete(
    driver: DriverPolicy, load: bool, waiting: Callable[[str], None], hung: list[earlier.Hung]
) -> list[str]:
    """Load missing modules and make missing nodes, where modules may be loaded; returns notes about failures."""
    if policy.absent(driver) or not driver["load-kernel-modules"]:
        return []  # the survey reports it
    proc = ensure.proc_dir(driver["root"])
    notes = modules.load(driver["root"], proc, waiting) if load else []
    still_hung = earlier.still(hung, ensure.driver(proc, modules.sys_dir(driver["root"]), False))
    return notes + nodes.make(driver["dev-root"], proc, still_hung)


def _warn(notes: list[str]) -> None:
    for note in dict.fromkeys(notes):
        logs.logger.warning("%s", note)


@contextlib.contextmanager
def _hold_lock(path: str, lock: int | None, waiting: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Hold the lock in the body; yields a `waiting` that also writes into the lock's file, for others."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600) if lock is None else lock

    def tell(task: str) -> None:
        waiting(task)
        with contextlib.suppress(OSError):  # no space
            os.ftruncate(fd, 0)
            os.pwrite(fd, task.encode(), 0)

    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # the kernel releases it however the process ends
        tell("the driver's modules and nodes")
        yield tell
        fcntl.flock(fd, fcntl.LOCK_UN)  # the create that handed it over has it too, and may be stopped
    finally:
        os.close(fd)


def _take_stdin() -> int:
    """Take the lock from standard input, where children would inherit and keep it."""
    lock = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    return lock
