"""Find out what the host has, and save it: the snapshot, and small files for launcher and hook.

Runs as a child of a create or of the command line, because NVML can hang: a deadline ends the whole process.
Out of scope: finding out what the host has (survey.py), and reading the snapshot (ensure.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from gpushim import logs, policy, stamp
from gpushim.cdi import publish
from gpushim.errors import FAILED, INVENTORY, GpushimError
from gpushim.inventory import ensure, hardlinks, make_nodes, modules, procfs, renew, still, survey
from gpushim.replace import replace
from gpushim.selection import SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn


LONGEST = 300  # seconds for a refresh that no one waits for; the slowest hosts are known to need 30
ROUNDS = 2
ATTEMPTS = 3  # more, when the state directory is removed meanwhile
# Seconds of a snapshot's life in which a unit looks anew, so that no create has to: the timer's period with its
# accuracy, and the time until nothing changes.
AHEAD = 90


def main(argv: list[str]) -> NoReturn:
    """Refresh the snapshot, say what is wrong on stderr, and exit.

    Args:
        argv: "--force" to look again even if the snapshot is true; "--locked" if standard input is the lock, which
            the create that started this has taken.
    """
    try:
        snapshot = refresh("--force" in argv, lock=_handed_over() if "--locked" in argv else None)
    except GpushimError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    if snapshot["error"]:
        _say(snapshot["error"]["sentence"])
        sys.exit(snapshot["error"]["code"])
    sys.exit(0)


def refresh(force: bool = False, load: bool = True, patient: bool = False, lock: int | None = None) -> dict[str, Any]:
    """Bring the snapshot up to date, one process at a time.

    If it takes too long, the process ends with a sentence on stderr and code INVENTORY.

    Args:
        force: look again even if the saved snapshot is true.
        load: load kernel modules that are missing, if the policy says so.
        patient: take as long as it takes, up to LONGEST; else the policy's deadline counts. And look again even if
            the saved snapshot is true, but not for another AHEAD seconds.
        lock: the state directory's, if it has been taken already: then it is patient too.

    Returns:
        the snapshot; its "error" says if this host cannot serve GPUs.

    Raises:
        GpushimError: the configuration is wrong, the state directory is not ours, or the snapshot cannot be written.
    """
    config, state = stamp.config_path(), stamp.state_dir()
    ahead = None if force else AHEAD if patient else 0
    with _recorded(state, config) as failed:
        identity = stamp.identity(config)  # of before it is read: another one since makes the snapshot stale
        settings, old_names = policy.loaded(config)
        logs.start(settings["log"]["format"], settings["log"]["level"])
        _warn(old_names)
        seconds = settings["refresh"]["deadline-seconds"]
        if patient or lock is not None:
            seconds = max(seconds, LONGEST)
        with _deadline(seconds, config, failed) as waiting:
            for _ in range(ATTEMPTS):
                with contextlib.suppress(FileNotFoundError, FileExistsError):  # it was removed, and maybe made again
                    return _renewed(config, identity, settings, waiting, lock, load, ahead)
                lock = None  # it was in the directory that is gone
            return _renewed(config, identity, settings, waiting, lock, load, ahead)


def unattended(load: bool) -> dict[str, Any]:
    """Bring the snapshot up to date as the units do: when the driver has come to rest, and not in its way.

    A snapshot that is true, and will be for a while, costs nothing more than seeing that, and so the timer's run.
    What changes while the host is listed is listed again, for no watch tells it: systemd does not look while the unit
    runs.

    Args:
        load: load kernel modules that are missing, if the policy says so.

    Returns:
        as `refresh`.

    Raises:
        GpushimError: as `refresh`; or the driver's module is being unloaded.
    """
    config, state = stamp.config_path(), stamp.state_dir()
    for _ in range(ROUNDS):
        root = policy.load(config)["driver"]["root"]
        proc = stamp.proc_dir(root)
        if _saved(config, state, AHEAD) is None or (load and modules.missing(proc)):
            still.wait(root, proc)
        snapshot = refresh(load=load, patient=True)
        if ensure.read(config, state) is not None:
            break
    return snapshot


def _saved(config: str, state: str, ahead: float) -> dict[str, Any] | None:
    """Return the saved snapshot if it is true, and has so many seconds to live."""
    found = ensure.read(config, state)
    return found if found is not None and stamp.alive(found, ahead) else None


def _renewed(
    config: str,
    identity: list[int] | None,
    settings: dict[str, Any],
    waiting: Callable[[str], None],
    lock: int | None,
    load: bool,
    ahead: float | None,
) -> dict[str, Any]:
    """List the host, alone, unless a saved snapshot has so many seconds to live; None if that does not matter."""
    state = stamp.state_dir()
    _prepare(state)
    waiting(f"another refresh, which holds {state}/{renew.LOCK}")
    with _locked(f"{state}/{renew.LOCK}", lock, waiting) as telling:
        notes = _complete(settings["driver"], load, telling)
        saved = None if ahead is None else _saved(config, state, ahead)
        if saved is not None:  # the other refresh did it
            _warn(notes)
            publish.on_refresh(saved)  # and its spec may have been removed since
            return saved
        snapshot = survey.survey(config, settings, _discreet(telling, settings))
        snapshot["stamp"][stamp.CONFIG_IDENTITY] = identity
        snapshot["notes"] += notes
        hardlinks.add(snapshot)
        _publish(state, snapshot)
        publish.on_refresh(snapshot)
    if snapshot["error"]:  # who called this says it; what else is missing follows from it, and is in the snapshot
        _warn(notes)
        return snapshot
    _warn(snapshot["notes"])
    logs.logger.info("%d GPUs and %d MIG instances listed", len(snapshot["gpus"]), len(snapshot["mig"]))
    return snapshot


def _discreet(telling: Callable[[str], None], settings: dict[str, Any]) -> Callable[[str], None]:
    """Keep to oneself for which GPU one waits, where refusals, which pass it on, tell no device of the host."""
    if settings["requests"]["list-devices-in-refusals"]:
        return telling
    return lambda what: telling(f"the driver to answer ({SHOWN} for which GPU)")


def look(settings: dict[str, Any]) -> dict[str, Any]:
    """List the host and save nothing; it ends the process as `refresh` does if it takes too long.

    Args:
        settings: the policy.

    Returns:
        a snapshot.
    """
    config = stamp.config_path()
    with _deadline(settings["refresh"]["deadline-seconds"], config, lambda error: None) as waiting:
        return survey.survey(config, settings, waiting)


def _complete(driver: dict[str, Any], load: bool, waiting: Callable[[str], None]) -> list[str]:
    """Load modules and make nodes that are missing; returns notes about what could not be done."""
    if policy.absent(driver):
        return []  # the survey says it
    proc = stamp.proc_dir(driver["root"])
    notes = modules.load(driver["root"], proc, waiting) if load and driver["load-kernel-modules"] else []
    return notes + make_nodes.make(driver["dev-root"], stamp.proc_dir(driver["root"]))


def _warn(notes: list[str]) -> None:
    for note in dict.fromkeys(notes):
        logs.logger.warning("%s", note)


@contextlib.contextmanager
def _recorded(state: str, config: str) -> Iterator[Callable[[GpushimError], None]]:
    """Tell those who wait why the body has failed; yields a function that tells it before the process is ended."""
    belongs = renew.facts(config)

    def failed(error: GpushimError) -> None:
        renew.record(state, belongs, error)

    try:
        yield failed
    except GpushimError as error:
        failed(error)
        raise
    except OSError as error:
        unsaved = GpushimError(f"the snapshot cannot be saved: {error}", FAILED)
        failed(unsaved)
        raise unsaved from None


@contextlib.contextmanager
def _deadline(seconds: int, config: str, failed: Callable[[GpushimError], None]) -> Iterator[Callable[[str], None]]:
    """End the process if the body takes too long; yields a function that is told what is being waited for.

    A thread does it: NVML is C code, so a signal's Python handler would not run before NVML returns, if ever.
    """
    what = ["nothing yet"]

    def give_up() -> None:
        error = GpushimError(
            f"listing the host's GPUs waited {seconds} s for {what[-1]} and gave up; {renew.SLOW} and run gpushim "
            f"refresh; deadline-seconds under [refresh] in {config} sets the time",
            INVENTORY,
        )
        failed(error)
        _say(str(error))
        os._exit(INVENTORY)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield what.append
    finally:
        timer.cancel()


@contextlib.contextmanager
def _locked(path: str, lock: int | None, waiting: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Hold the lock in the body; yields `waiting` for those who hold it: the lock's file tells others."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600) if lock is None else lock

    def tell(what: str) -> None:
        waiting(what)
        with contextlib.suppress(OSError):  # no space: then nobody knows
            os.ftruncate(fd, 0)
            os.pwrite(fd, what.encode(), 0)

    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # the kernel lets it go when the process ends, however it ends
        tell("the driver's modules and nodes")
        yield tell
        fcntl.flock(fd, fcntl.LOCK_UN)  # the create that has handed it over has it too, and may be stopped
    finally:
        os.close(fd)


def _handed_over() -> int:
    """Take the lock from standard input, where what is started from here must not find it: it might stay."""
    lock = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lock


def _prepare(state: str) -> None:
    """Make the state directory, and refuse one where others could put a snapshot."""
    try:
        os.mkdir(state)
        os.chmod(state, 0o755)  # noqa: S103 - the launcher reads it in rootless engines too; mkdir minds the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise GpushimError(
            f"{state} cannot be made: {error.strerror}; run gpushim refresh as root, or set GPUSHIM_STATE to a "
            "directory of your own",
            INVENTORY,
        ) from None
    if not stamp.ours(state):
        os.lstat(state)  # raises if it was removed meanwhile, and refresh begins anew
        raise GpushimError(
            f"{state} cannot be trusted: it is no directory that only root can write to; remove it",
            INVENTORY,
        )
    if os.statvfs(state).f_flag & os.ST_RDONLY:
        raise GpushimError(
            f"the snapshot in {state} is out of date, and the file system there is mounted read-only: mount it "
            "writable, or set GPUSHIM_STATE to a directory elsewhere",
            INVENTORY,
        )
    if not os.access(state, os.W_OK):
        raise GpushimError(
            f"the snapshot in {state} is out of date, and this user may not renew it: run gpushim refresh as root, "
            "or set GPUSHIM_STATE to a directory of your own",
            INVENTORY,
        )


def _publish(state: str, snapshot: dict[str, Any]) -> None:
    """Save a snapshot, and before it what launcher and hook read: a true snapshot means that those are true too."""
    driver = snapshot["driver"]
    with contextlib.suppress(FileExistsError):
        os.mkdir(driver["empty"], 0o555)
    if driver["params"]:
        _replace(driver["params"], procfs.restricted_params(stamp.proc_dir(driver["root"])))
    _tell_launcher(state, snapshot)
    _remove(f"{state}/{renew.FAILURE}")
    _replace(f"{state}/{ensure.SNAPSHOT}", json.dumps(snapshot, separators=(",", ":")) + "\n")


def _tell_launcher(state: str, snapshot: dict[str, Any]) -> None:
    """Write what the launcher reads: `triggers`; `config`, a link to the configuration, if there is one; `runtime`.

    The latter has the configuration's time, and so vouches for all: a shell can compare times, not read them. With
    other words or another link than before it is taken away first, so that it never vouches for what it was not made
    with.
    """
    requests, cdi = snapshot["policy"]["requests"], snapshot["policy"]["cdi"]
    known = policy.defaults()["cdi"]["annotation-prefixes"]
    words = [*requests["swarm-variables"], *(word for word in cdi["annotation-prefixes"] if word not in known)]
    text, runtime = "".join(f"{word}\n" for word in words), state + "/runtime"
    identity = snapshot["stamp"][stamp.CONFIG_IDENTITY]
    target, time = (os.path.realpath(snapshot["inputs"]["config"]), identity[2]) if identity else ("", None)
    if stamp.identity(target) != identity:  # another came since it was read, maybe with the same time
        target, time = "", None
    low = snapshot["runtime"] or _stand_in(runtime)
    if _told(state) != (text, target):
        _remove(runtime)
        _remove(state + "/config")
        if target:
            os.symlink(target, state + "/config")
        _replace(state + "/triggers", text)
    _replace(runtime, low + "\n", time)
    if time is not None and os.stat(runtime).st_mtime_ns != time:
        snapshot["notes"].append(
            f"the file system of {state} keeps times less exactly than that of {target}, so every call of "
            "gpushim-runtime starts Python; let GPUSHIM_STATE name a directory on a tmpfs"
        )
    snapshot["told"] = ensure.told(state)


def _stand_in(path: str) -> str:
    """Find what containers that are there shall get instead of a runtime that is absent, if there is one."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            last = file.readline().rstrip("\n")
    except OSError:
        last = ""
    try:
        return policy.stand_in([], last)
    except GpushimError:
        return last


def _told(state: str) -> tuple[str, str] | None:
    """Read the words and the configuration's path that the launcher was told last."""
    try:
        with open(state + "/triggers", encoding="utf-8", errors="surrogateescape") as file:
            return file.read(), os.readlink(state + "/config") if os.path.lexists(state + "/config") else ""
    except OSError:
        return None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _replace(path: str, text: str, time: int | None = None) -> None:
    """Put a file of the state directory in place; `time` is to be its mtime, in nanoseconds."""
    replace(path, os.fsencode(text), time=time)


def _say(sentence: str) -> None:
    """Write a refusal, as the parent and people look for it: the last line of stderr."""
    print(f"{renew.PREFIX}{sentence}", file=sys.stderr, flush=True)
