from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import pytest

from gpuplugin.processes import moments, tasks
from gpushim.ground.errors import FAILED, GpushimError


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
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError("no room"), GpushimError("no room", FAILED)])
def test_an_error_is_logged_once_until_it_comes_after_a_while(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a part that does at each tenth moment alone what fails; 200 s lie between the two."""
    fails = {*range(0, 50, 10), *range(100, 150, 10)}
    passes = itertools.count()
    logged: list[int] = []

    async def part() -> None:
        logged.append(len(caplog.messages))
        number = next(passes)
        monkeypatch.setattr(time, "monotonic", lambda: number * moments.EACH)
        if number == 160:
            raise KeyError
        if number in fails:
            raise error

    monkeypatch.setattr(moments, "until", lambda: 0.0)
    with pytest.raises(KeyError):
        asyncio.run(tasks.repeat(part))
    assert (caplog.messages, logged[100], logged[101]) == (["no room"] * 2, 1, 2)
