"""Failures of a refresh: recorded for all who wait for it, kept to the process, or its end.

Creates that waited for a refresh get the error that it recorded. A process's own lack of memory, processes or files
is not recorded, as a create has the limits of the tenant whose container it makes; the next create tries again.
Where NVML hangs, only a deadline helps, which ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpushim.config import policy
from gpushim.ground.errors import FAILED, INVENTORY, GpushimError
from gpushim.inventory import ensure, modules
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushim.ground.model import Belongs, Inputs

FAILURE = "failure"  # in the state directory
LOOK = 0.5  # seconds between looks whether it is hopeless
PREFIX = "gpushim: "  # of a refusal on stderr
SLOW = (
    "GPUs that must be initialised first, or are stuck, take that long: turn on persistence mode "
    "(nvidia-persistenced, or nvidia-smi -pm 1)"
)
# EFBIG: the limit of a file's size (setrlimit(2)).
ERRNOS = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EFBIG}
THREAD = "can't start new thread"  # Python's RuntimeError for EAGAIN
# The loader's and NVML's own words for it: NVML_ERROR_MEMORY and NVML_ERROR_INSUFFICIENT_RESOURCES.
WORDS = ("annot allocate memory", "Insufficient Memory", "Insufficient Resources", "failed to map segment")


def facts(config: str) -> Belongs:
    """Return the facts about host and configuration for which a failure counts."""
    try:
        root = policy.load(config)["driver"]["root"]
    except GpushimError:
        root = "/"
    inputs: Inputs = {"config": config, "root": root, "sys": modules.sys_dir(root), "times": False, "nodes": []}
    return {"inputs": inputs, "stamp": ensure.current(inputs)}


def record(state: str, belongs: Belongs, error: GpushimError) -> None:
    """Save a refresh's error, with the `facts` at its beginning, for creates that wait; the caller holds the lock."""
    failure = {**belongs, "at": now(), "sentence": str(error), "code": error.exit_code}
    with contextlib.suppress(OSError):  # then each of them tries for itself
        if trust.ours(state):
            replace(f"{state}/{FAILURE}", json.dumps(failure).encode(), 0o600)


def pass_on(state: str, config: str, since: int) -> None:
    """Raise the error of a refresh that failed since this create began to wait, unless the host has changed."""
    failure = ensure.own(f"{state}/{FAILURE}")
    try:
        counts = since <= failure["at"] <= now() and failure["inputs"]["config"] == config
        if counts and ensure.current(failure["inputs"]) == failure["stamp"]:
            raise GpushimError(str(failure["sentence"]), int(failure["code"]))
    except (KeyError, IndexError, TypeError, ValueError):  # none, or of another version
        return


def now() -> int:
    """Return the nanoseconds since boot, a clock that is the same for all processes and never set."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def recorded(state: str, config: str) -> Iterator[Callable[[GpushimError], None]]:
    """Record an error of the body for creates that wait; yields the function to call before the process is ended.

    An error that comes of this process's own limits is raised and not recorded.
    """
    failed = functools.partial(record, state, facts(config))
    try:
        yield failed
    except (GpushimError, OSError, MemoryError, RuntimeError) as error:
        if lack := scarce(error):
            raise lack from None
        if isinstance(error, GpushimError):
            failed(error)
        elif isinstance(error, OSError):
            path = error.filename2 or error.filename or state
            unsaved = GpushimError(
                f"the snapshot cannot be saved: {path}: {error.strerror or error}; gpushim doctor may know why",
                FAILED,
            )
            failed(unsaved)
            raise unsaved from None
        raise


def scarce(error: BaseException) -> GpushimError | None:
    """Return the refusal for an error that comes of want of memory, processes or files, also behind `from None`."""
    cause: BaseException | None = error
    while cause is not None:
        if _is_want(cause):
            return GpushimError(
                f"gpushim refresh got too little memory, or too few processes or files ({cause or 'out of memory'}): "
                "raise the limits of the process that creates this container, or run gpushim refresh outside of them",
                INVENTORY,
            )
        cause = cause.__cause__ or cause.__context__
    return None


def among(notes: list[str]) -> GpushimError | None:
    """Return the refusal for a listing with a note about want of memory, processes or files."""
    return next(filter(None, (scarce(RuntimeError(note)) for note in notes)), None)


def _is_want(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno:
        return error.errno in ERRNOS
    text = str(error)
    return isinstance(error, MemoryError) or THREAD in text or any(words in text for words in WORDS)


@contextlib.contextmanager
def deadline(
    seconds: int,
    config: str,
    failed: Callable[[GpushimError], None],
    hopeless: Callable[[], GpushimError | None] = lambda: None,
) -> Iterator[Callable[[str], None]]:
    """End the process if the body takes too long; yields `waiting`.

    It ends too, without a record, when `hopeless` returns a refusal: another process may have more luck at once.
    A thread does it: NVML is C code, and a signal's Python handler would run only after it returns.
    """
    tasks, over, until = ["nothing yet"], threading.Event(), time.monotonic() + seconds

    def give_up() -> None:
        error = GpushimError(
            f"listing the host's GPUs waited {seconds} s for {tasks[-1]} and gave up; {SLOW} and run gpushim "
            f"refresh; deadline-seconds under [refresh] in {config} sets the time",
            INVENTORY,
        )
        failed(error)
        say(str(error))
        os._exit(INVENTORY)

    def watch() -> None:
        while not over.wait(max(0.0, min(LOOK, until - time.monotonic()))):
            if refusal := hopeless():
                say(str(refusal))
                os._exit(refusal.exit_code)
            if time.monotonic() >= until:
                give_up()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield tasks.append
    finally:
        over.set()


def tail(fd: int, limit: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, limit, max(0, size - limit)).decode("utf-8", "replace")


def say(sentence: str) -> None:
    """Write a refusal as the last line of stderr, where the parent looks for it."""
    print(f"{PREFIX}{sentence}", file=sys.stderr, flush=True)
