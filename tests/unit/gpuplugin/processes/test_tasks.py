from __future__ import annotations

import asyncio
import contextlib

import pytest

from gpuplugin.processes import tasks


async def keeps_on() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)


async def fails() -> None:
    raise ValueError


def test_a_task_that_swallows_a_cancelling_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN", 0.01)

    async def run() -> None:
        one, other = asyncio.ensure_future(keeps_on()), asyncio.ensure_future(fails())
        await asyncio.sleep(0)
        await asyncio.wait_for(tasks.cancel(one, other), 10)
        assert one.cancelled()
        assert isinstance(other.exception(), ValueError)

    asyncio.run(run())


def test_no_task_is_no_wait() -> None:
    asyncio.run(tasks.cancel())


@pytest.mark.parametrize("seconds", [0.01, 60], ids=["too long", "set"])
def test_an_event_is_waited_for_no_longer_than_that(seconds: float) -> None:
    async def run() -> None:
        event = asyncio.Event()
        if seconds > 1:
            asyncio.get_running_loop().call_later(0.01, event.set)
        await asyncio.wait_for(tasks.until(event, seconds), 30)
        assert event.is_set() == (seconds > 1)

    asyncio.run(run())


def test_a_cancelling_is_not_swallowed_as_the_event_is_set() -> None:
    async def run() -> None:
        event = asyncio.Event()
        waiter = asyncio.ensure_future(tasks.until(event, 60))
        await asyncio.sleep(0)
        event.set()
        await asyncio.sleep(0)  # what waits for the event has ended, and is told after the cancelling
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(run())
