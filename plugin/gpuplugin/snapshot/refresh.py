"""`gpushim refresh` in a child with a deadline: NVML can hang, and is never called in the plugin's own process.

One at a time, and the more rarely the more often it fails, but at once when the driver or config.toml has changed.
Out of scope: how it is started (process.py); what a refresh does (gpushim.refresh.refresh).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from typing import TYPE_CHECKING

from gpuplugin.processes import counts, process, tasks
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError, visible
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, hung, renew

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpushim.ground.model import Snapshot

    Line = tuple[int, str]  # level, text

GRACE = 10  # seconds after its own deadline (deadline-seconds under [refresh]) before it is killed
FIRST, LONGEST = 1.0, 60.0  # seconds between tries that fail
STDERR_LIMIT = 16384  # bytes at the end of what it says
LINES = 50  # of it that are logged
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Refresh:
    """The child, started when it is needed.

    Args:
        ended: is called when it has ended.
        start: starts the task that waits for it, and sees to what that ends with.

    Attributes:
        problem: why the last one brought no snapshot that is true; None if it did.
    """

    def __init__(
        self, ended: Callable[[], None], start: Callable[[Any], asyncio.Task[Any]] = asyncio.ensure_future
    ) -> None:
        self._ended, self._start = ended, start
        self._task: asyncio.Task[None] | None = None
        self._pause, self._again = FIRST, 0.0  # seconds; time.monotonic()
        self._waits = False  # for one that is killed, to begin another
        self._force = False  # a snapshot that its stamp holds for true
        self._failed_for: object = None  # facts about host and configuration
        self._overtaken = False  # the last one was, and brought nothing
        self._logged: set[str] = set()
        self.problem: GpushimError | None = None

    def read(self) -> Snapshot | None:
        """Return the snapshot if it is true; else have it renewed."""
        found = ensure.read(system.config_path(), system.state_dir())
        if found is None:
            self.need()
        else:  # another process may have renewed it
            self.problem = None
        return found

    def last(self) -> Snapshot | None:
        """Return the last one, though the host may have changed since."""
        config, state = system.config_path(), system.state_dir()
        found = ensure.read(config, state)
        if found is None:
            saved, stale = ensure.last(config, state)
            found = None if stale == "policy" else saved
        return found

    def need(self) -> None:
        """Start it, unless it runs or has just failed."""
        if self._task is not None:
            return
        if time.monotonic() < self._again:
            if renew.facts(system.config_path()) == self._failed_for:
                return
            self._pause = FIRST
        self._task = self._start(self._run())

    def hurry(self, again: bool = False) -> None:
        """Start it now, whatever came of the last one, though the snapshot seems true: there is news of GPUs.

        Args:
            again: one that runs waits in vain, for a GPU that the next leaves out: it is killed, which is no failure.
        """
        self._pause, self._again, self._force = FIRST, 0.0, True
        if again and self._task is not None and not self._waits:
            self._waits = True
            self._task = self._start(self._after(self._task))
        self.need()

    async def stop(self) -> None:
        """Kill it, if it runs; it may be started again."""
        if self._task is not None:
            await tasks.cancel(self._task)
        self._task = None

    async def _after(self, last: asyncio.Task[None]) -> None:
        try:
            await tasks.cancel(last)
        finally:
            self._waits = False
        await self._run()

    async def _run(self) -> None:
        config, state = system.config_path(), system.state_dir()
        facts, seconds, hangs = renew.facts(config), longest(), {*hung.known(state)}
        force, self._force = ["--force"] * self._force, False
        began = time.monotonic()
        try:
            code, output = await run([*renew.command(), *force], _environment(config, state), seconds)
        except OSError as error:
            sentence = f"gpushim refresh cannot be started: {error.strerror}"
            self._over(config, state, INVENTORY, [(logging.WARNING, sentence)])
        except LateError as late:
            self._over(config, state, INVENTORY, [(logging.WARNING, str(late))])
            await process.gone(late.pid)  # a driver that hangs may hold it: another would hang beside it
        else:
            changed = renew.facts(config) != facts and not code
            changed = changed or not hangs.issuperset(hung.known(state))
            self._over(config, state, code, _lines(output), changed and not self._overtaken)
        counts.took(counts.REFRESHES, time.monotonic() - began)
        self._failed_for, self._task = facts, None
        self._again = time.monotonic() + self._pause if self.problem else 0.0
        self._pause = min(2 * self._pause, LONGEST) if self.problem else FIRST
        self._ended()

    def _over(self, config: str, state: str, code: int, lines: list[Line], overtaken: bool = False) -> None:
        """Log what it said, but not again what the last one said too; and take note of what came of it.

        One that was `overtaken` has not failed, for the next one sees what has changed: the host, or that a GPU
        hangs, as another instance has told.
        """
        true = ensure.read(config, state) is not None
        self._overtaken = overtaken and not true  # the next one may not be that, too
        self.problem = None if true or overtaken else _why(code, lines)
        if self.problem:
            counts.add(counts.REFRESH_ERRORS)
        # Where there is a snapshot, it has the error, which comes last.
        output = {text: level for level, text in lines[: -1 if true and code else None]}
        if self.problem:
            output.setdefault(str(self.problem), logging.WARNING)
        for text, level in output.items():
            if text not in self._logged:
                logger.log(level, "%s", text)
        self._logged = set(output)
        self._ended()


class LateError(Exception):
    """A child did not end in time, and has been sent SIGKILL.

    Attributes:
        pid: the child's.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        super().__init__(f"gpushim refresh has not ended after {seconds:g} s and is killed; {renew.SLOW}")
        self.pid = pid


async def run(words: list[str], environment: dict[str, str], seconds: float) -> tuple[int, bytes]:
    """Run a program until it ends.

    Args:
        words: its command line, with an absolute path.
        environment: its variables, all of them.
        seconds: after which it is killed with its children.

    Returns:
        its exit code, or less a signal's number; the end of what it wrote to stderr.

    Raises:
        OSError: it cannot be started.
        LateError: it took too long.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(reading, False)
        try:
            pid = process.spawn(words, environment, None, writing)
        finally:
            os.close(writing)
        output, late = b"", time.monotonic() + seconds
        while time.monotonic() < late:
            (ended, status), output = os.waitpid(pid, os.WNOHANG), _more(reading, output)
            if ended:
                return process.code(status), output
            await asyncio.sleep(process.POLL)
        process.kill(pid)
        raise LateError(seconds, pid)
    except asyncio.CancelledError:
        process.kill(pid)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.gone(pid), 1)
        raise
    finally:
        os.close(reading)


def _more(reading: int, output: bytes) -> bytes:
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reading, STDERR_LIMIT):
            output = (output + data)[-STDERR_LIMIT:]
    return output


def _lines(output: bytes) -> list[Line]:
    """Take its log apart: lines of text, or of JSON; its refusal, which comes last, is text."""
    found = []
    for line in output.decode("utf-8", "replace").strip().splitlines()[-LINES:]:
        level, text = "warning", line
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(line)
            level, text = str(record["level"]), str(record["msg"])
        if text.startswith(renew.PREFIX):
            text = text[len(renew.PREFIX) :]
            before, colon, after = text.partition(": ")
            level, text = (before, after) if colon and before in LEVELS else (level, text)
        found.append((LEVELS.get(level, logging.WARNING), visible(text)))
    return found


def _why(code: int, lines: list[Line]) -> GpushimError:
    if code < 0:
        return GpushimError(f"gpushim refresh was ended by signal {-code}; run it by hand to see why", INVENTORY)
    if code and lines:
        return GpushimError(lines[-1][1], code)
    return GpushimError("gpushim refresh brought no inventory that is true; run it by hand to see why", INVENTORY)


def _environment(config: str, state: str) -> dict[str, str]:
    return {**process.environment(), "GPUSHIM_CONFIG": config, "GPUSHIM_STATE": state}


def longest() -> int:
    """Return the seconds that a refresh may take."""
    return _seconds(system.config_path()) + GRACE


def _seconds(config: str) -> int:
    try:
        return int(policy.load(config)["refresh"]["deadline-seconds"])
    except GpushimError:  # the refresh reports it
        return int(policy.defaults()["refresh"]["deadline-seconds"])
