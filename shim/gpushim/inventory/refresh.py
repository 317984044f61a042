"""Find out what the host has, and save it: the snapshot, and small files for launcher and hook.

Runs as a child of a create or of the command line, because NVML can hang: a deadline ends the whole process.
Out of scope: finding out what the host has (survey.py), and reading the snapshot (ensure.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

from gpushim import logs, policy, stamp
from gpushim.cdi import publish
from gpushim.errors import FAILED, INVENTORY, GpushimError
from gpushim.inventory import ensure, hardlinks, make_nodes, modules, procfs, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    """Refresh the snapshot, say what is wrong on stderr, and exit.

    Args:
        argv: "--force" to look again even if the snapshot is true.
    """
    try:
        snapshot = refresh("--force" in argv)
    except GpushimError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _say(f"the snapshot cannot be saved: {error}")
        sys.exit(FAILED)
    if snapshot["error"]:
        _say(snapshot["error"]["sentence"])
        sys.exit(snapshot["error"]["code"])
    sys.exit(0)


def refresh(force: bool = False) -> dict[str, Any]:
    """Bring the snapshot up to date, one process at a time.

    If it takes longer than the policy's deadline, the process ends with a sentence on stderr and code INVENTORY.

    Args:
        force: look again even if the saved snapshot is true.

    Returns:
        the snapshot; its "error" says if this host cannot serve GPUs.

    Raises:
        GpushimError: the configuration is wrong, there is no low-level runtime, or the state directory is not ours.
        OSError: the snapshot cannot be written.
    """
    config, state = stamp.config_path(), stamp.state_dir()
    identity = stamp._identity(config)  # of before it is read: another one since makes the snapshot stale
    settings = policy.load(config)
    logs.start(settings["log"]["format"], settings["log"]["level"])
    _warn(policy.old_names(policy.given(config) or {}))
    _prepare(state)
    with _deadline(settings["refresh"]["deadline-seconds"], config) as waiting:
        waiting(f"another refresh, which holds {state}/lock")
        with _locked(state + "/lock"):
            notes = _complete(settings["driver"], waiting)
            saved = None if force else ensure.read(config, state)
            if saved is not None:  # the other refresh did it
                _warn(notes)
                publish.on_refresh(saved)  # and its spec may have been removed since
                return saved
            snapshot = survey.survey(config, settings, waiting)
            snapshot["stamp"][stamp.CONFIG_IDENTITY] = identity
            snapshot["notes"] += notes
            hardlinks.add(snapshot)
            _publish(state, snapshot)
            publish.on_refresh(snapshot)
    _warn(snapshot["notes"])
    logs.logger.info("%d GPUs and %d MIG instances listed", len(snapshot["gpus"]), len(snapshot["mig"]))
    return snapshot


def look(settings: dict[str, Any]) -> dict[str, Any]:
    """List the host and save nothing; it ends the process as `refresh` does if it takes too long.

    Args:
        settings: the policy.

    Returns:
        a snapshot.

    Raises:
        GpushimError: there is no low-level runtime.
    """
    config = stamp.config_path()
    with _deadline(settings["refresh"]["deadline-seconds"], config) as waiting:
        return survey.survey(config, settings, waiting)


def _complete(driver: dict[str, Any], waiting: Callable[[str], None]) -> list[str]:
    """Load modules and make nodes that are missing; returns notes about what could not be done."""
    proc = stamp.proc_dir(driver["root"])
    notes = modules.load(driver["root"], proc, waiting) if driver["load-kernel-modules"] else []
    return notes + make_nodes.make(driver["dev-root"], stamp.proc_dir(driver["root"]))


def _warn(notes: list[str]) -> None:
    for note in notes:
        logs.logger.warning("%s", note)


@contextlib.contextmanager
def _deadline(seconds: int, config: str) -> Iterator[Callable[[str], None]]:
    """End the process if the body takes too long; yields a function that is told what is being waited for.

    A thread does it: NVML is C code, so a signal's Python handler would not run before NVML returns, if ever.
    """
    what = ["nothing yet"]

    def give_up() -> None:
        _say(ensure.too_slow(what[-1], seconds, config))
        os._exit(INVENTORY)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield what.append
    finally:
        timer.cancel()


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # the kernel lets it go when the process ends, however it ends
        yield
    finally:
        os.close(fd)


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
    status = os.lstat(state)
    if not stat.S_ISDIR(status.st_mode) or not stamp.trusted(status.st_uid) or status.st_mode & ensure.OTHERS_WRITE:
        raise GpushimError(
            f"{state} cannot be trusted: it is not a directory that only root can write to; remove it",
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
    if _told(state) != (text, target):
        _remove(runtime)
        _remove(state + "/config")
        if target:
            os.symlink(target, state + "/config")
        _replace(state + "/triggers", text)
    _replace(runtime, snapshot["runtime"] + "\n", time)
    if time is not None and os.stat(runtime).st_mtime_ns != time:
        snapshot["notes"].append(
            f"the file system of {state} keeps times less exactly than that of {target}, so every call of "
            "gpushim-runtime starts Python; let GPUSHIM_STATE name a directory on a tmpfs"
        )
    snapshot["told"] = ensure.told(state)


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
    """Put a file in place so that a reader sees the old one or the whole new one; the caller holds the lock.

    Args:
        path: of the file.
        text: what is to be in it.
        time: to be its mtime, in nanoseconds.
    """
    fresh = path + ".new"
    _remove(fresh)  # of a refresh that was killed
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, 0o644)
            if time is not None:
                os.utime(fd, ns=(time, time))
            os.fsync(fd)
        os.rename(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def _say(sentence: str) -> None:
    """Write a refusal, as the parent and people look for it: the last line of stderr."""
    print(f"{ensure.PREFIX}{sentence}", file=sys.stderr, flush=True)
