"""Waiting and ending as asyncio.wait_for cannot: before Python 3.12 it swallows the cancelling that comes just when
what it waits for ends. Out of scope: what the tasks do.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN = 1.5  # seconds; more than a task takes to clean up after itself


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


async def nothing() -> None:
    """Do nothing."""
