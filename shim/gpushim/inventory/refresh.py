"""Find out what the host has, and save it: the snapshot, and small files for launcher and hook.

Runs as a child of a create or of the command line, because NVML can hang: a deadline ends the whole process.
Out of scope: what is where (gpus.py, nodes.py, files.py), and reading the snapshot (ensure.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gpushim import __version__, logs, policy, stamp
from gpushim.errors import FAILED, INVENTORY, GpushimError
from gpushim.inventory import ensure, files, gpus, nodes, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

ATTEMPTS = 3  # when the host changes while it is looked at, as it does when NVML makes device nodes


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
    settings = policy.load(config)
    logs.start(settings["log"]["format"], settings["log"]["level"])
    _prepare(state)
    with _deadline(settings["refresh"]["deadline-seconds"], config) as waiting:
        waiting(f"another refresh, which holds {state}/lock")
        with _locked(state + "/lock"):
            saved = None if force else ensure.read(config, state)
            if saved is not None:
                return saved  # the other refresh did it
            snapshot = gather(config, settings, waiting)
            _publish(state, snapshot)
    for note in snapshot["notes"]:
        logs.logger.warning("%s", note)
    logs.logger.info("%d GPUs and %d MIG instances listed", len(snapshot["gpus"]), len(snapshot["mig"]))
    return snapshot


def gather(config: str, settings: dict[str, Any], waiting: Callable[[str], None]) -> dict[str, Any]:
    """Find out what the host has.

    Args:
        config: path of config.toml.
        settings: the policy.
        waiting: called with what is asked next, before each call that may take long.

    Returns:
        a snapshot.

    Raises:
        GpushimError: there is no low-level runtime.
    """
    runtime = policy.low_level(settings["runtime"]["low-level"])
    root, dev_root = settings["driver"]["root"], settings["driver"]["dev-root"]
    proc = stamp.proc_dir(root)
    for _ in range(ATTEMPTS):
        before = stamp.driver(proc)
        snapshot = _ask_driver(settings, proc, waiting)
        watched = nodes.watched(nodes.find(dev_root, proc, []), _nodes_in_use(snapshot))
        paths = [files.inside(dev_root, path) for path in watched]
        paths += [files.inside(root, path) for path in files.SOCKETS] + [runtime]
        inputs = {"config": config, "root": root, "dev-root": dev_root, "nodes": paths}
        facts = stamp.current(inputs)
        snapshot.update(inputs=inputs, stamp=facts, runtime=runtime, policy=settings)
        _add_nodes_and_files(snapshot, proc)
        # Facts from before the look at the files: a change since then makes the snapshot stale, never wrong.
        if facts == stamp.current(inputs) and stamp.driver(proc) == before:
            break
    return snapshot


def _ask_driver(settings: dict[str, Any], proc: str, waiting: Callable[[str], None]) -> dict[str, Any]:
    """Begin a snapshot with what the kernel module and NVML tell."""
    root = settings["driver"]["root"]
    notes: list[str] = []
    found: dict[str, Any] = {"source": "proc", "cuda": "", "gpus": [], "mig": []}
    error = None
    version = procfs.module_version(proc)
    state = stamp.state_dir()
    covers = {"params": f"{state}/params" if procfs.restricted_params(proc) else "", "empty": f"{state}/empty"}
    try:
        _check_driver(version, root, proc)
        found = gpus.read(root, proc, version or "", notes, waiting)
    except GpushimError as trouble:
        error = {"sentence": str(trouble), "code": trouble.exit_code}
    return {
        "version": ensure.SCHEMA,
        "gpushim": __version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": "native",
        "source": found["source"],
        "notes": notes,
        "driver": {"version": version or "", "cuda": found["cuda"], **covers, **settings["driver"]},
        "error": error,
        "gpus": found["gpus"],
        "mig": found["mig"],
    }


def _check_driver(version: str | None, root: str, proc: str) -> None:
    if not version:
        trouble = "is not there" if version is None else "does not tell a version"
        raise GpushimError(
            f"no NVIDIA driver is loaded ({proc}/driver/nvidia/version {trouble}): load it (modprobe nvidia), then "
            "run gpushim refresh",
            INVENTORY,
        )
    if any(files.library(root, name, version) for name in files.TELLTALES):
        return
    installed = files.versions(root)
    if installed:
        raise gpus.mismatch(version, installed[0])
    raise GpushimError(
        f"the NVIDIA kernel module {version} is loaded, but there is neither libcuda.so.{version} nor "
        f"libnvidia-ml.so.{version} below {root}: install the driver's libraries, or set root under [driver]",
        INVENTORY,
    )


def _nodes_in_use(snapshot: dict[str, Any]) -> list[str]:
    return [gpu["node"] for gpu in snapshot["gpus"]] + [node for mig in snapshot["mig"] for node in mig["nodes"]]


def _add_nodes_and_files(snapshot: dict[str, Any], proc: str) -> None:
    driver, notes = snapshot["driver"], snapshot["notes"]
    found = nodes.find(driver["dev-root"], proc, notes)
    for gpu in snapshot["gpus"]:
        if gpu["node"] not in found and gpu["problem"] is None:
            gpu["problem"] = (
                f"GPU {gpu['index']} has no usable device node {gpu['node']}; make it with "
                f"nvidia-modprobe -c {gpu['minor']}, then run gpushim refresh"
            )
            notes.append(gpu["problem"])
    snapshot["nodes"] = found
    snapshot["features"] = nodes.features(found)
    snapshot["imex"] = nodes.imex_channels(found)
    snapshot["files"] = {} if snapshot["error"] else files.find(driver["root"], driver["version"], notes)


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
    _replace(state + "/runtime", snapshot["runtime"] + "\n")
    driver = snapshot["driver"]
    with contextlib.suppress(FileExistsError):
        os.mkdir(driver["empty"], 0o555)
    if driver["params"]:
        _replace(driver["params"], procfs.restricted_params(stamp.proc_dir(driver["root"])))
    requests, cdi = snapshot["policy"]["requests"], snapshot["policy"]["cdi"]
    known = policy.defaults()["cdi"]["annotation-prefixes"]
    words = [*requests["swarm-variables"], *(word for word in cdi["annotation-prefixes"] if word not in known)]
    if words:
        _replace(state + "/triggers", "".join(f"{word}\n" for word in words))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state + "/triggers")
    _replace(f"{state}/{ensure.SNAPSHOT}", json.dumps(snapshot, separators=(",", ":")) + "\n")


def _replace(path: str, text: str) -> None:
    """Put a file in place so that a reader sees the old one or the whole new one; the caller holds the lock."""
    fresh = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)  # of a refresh that was killed
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    os.rename(fresh, path)


def _say(sentence: str) -> None:
    """Write a refusal, as the parent and people look for it: the last line of stderr."""
    print(f"{ensure.PREFIX}{sentence}", file=sys.stderr, flush=True)
