"""Waits and ends of tasks as asyncio.wait_for cannot have them, and a task that repeats a part.

Before Python 3.12 it swallows a cancelling that comes just when what it waits for ends.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.processes import moments
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

AGAIN = 1.5  # seconds; more than a task takes to clean up after itself
QUIET = 60.0  # seconds without an error after which it is news: a part may do at a few moments what fails


class Tasks:
    """The tasks of a process, which fails with the first error of one of them.

    Args:
        woken: is called when one has failed.
    """

    def __init__(self, woken: Callable[[], object]) -> None:
        self._woken = woken
        self._all: set[asyncio.Task[Any]] = set()
        self.broken: BaseException | None = None

    def start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._all.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._all.discard(task)
        if not task.cancelled() and task.exception():
            self.broken = task.exception()
            self._woken()

    async def stop(self) -> None:
        """Cancel all, and wait until they have ended."""
        await asyncio.gather(cancel(*self._all), return_exceptions=True)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and again until they have ended, for they may swallow it."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN)


async def until(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than so many seconds; with no task, which costs turns of the loop."""
    timer = asyncio.get_running_loop().call_later(seconds, _wake, event)
    try:
        await event.wait()
    finally:
        timer.cancel()


def _wake(event: asyncio.Event) -> None:
    """Wake who waits for an event, which is not set for that."""
    if not event.is_set():
        event.set()
        event.clear()


async def nothing(*_: object) -> None:
    """Do nothing."""


async def repeat(part: Callable[[], Awaitable[None]]) -> None:
    """Call a part now and at each moment; log an error once, and again when it comes after QUIET without."""
    last_error, last_time = "", 0.0
    while True:
        try:
            await part()
        except (GpushimError, OSError) as error:
            time_now = time.monotonic()
            if str(error) != last_error or time_now - last_time > QUIET:
                logger.warning("%s", error)
            last_error, last_time = str(error), time_now
        await asyncio.sleep(moments.until())
