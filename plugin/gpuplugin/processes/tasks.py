"""Waiting and ending as asyncio.wait_for cannot: before Python 3.12 it swallows the cancelling that comes just when
what it waits for ends. And a task that does the same again and again. Out of scope: what the tasks do.
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
    """The tasks of a process, which fails with what one of them fails with.

    Args:
        woken: is called when one has failed.

    Attributes:
        broken: what it failed with.
    """

    def __init__(self, woken: Callable[[], object]) -> None:
        self._woken = woken
        self._all: set[asyncio.Task[Any]] = set()
        self.broken: BaseException | None = None

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Start a coroutine as a task, and return it."""
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
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)


async def until(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than so many seconds."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        waiter.cancel()


async def nothing(*_: object) -> None:
    """Do nothing."""


async def repeat(part: Callable[[], Awaitable[None]]) -> None:
    """Do a part now and at each moment; what is wrong is logged once, and again when it comes after QUIET without.

    Args:
        part: such as a look.
    """
    last_error, then = "", 0.0
    while True:
        try:
            await part()
        except (GpushimError, OSError) as error:
            now = time.monotonic()
            if str(error) != last_error or now - then > QUIET:
                logger.warning("%s", error)
            last_error, then = str(error), now
        await asyncio.sleep(moments.until())
