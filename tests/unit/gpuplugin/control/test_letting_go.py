"""Letting go of the GPUs, as the device plugin and the DRA driver do: what is closed when, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.control import letting_go
from gpuplugin.control.letting_go import LettingGo
from gpuplugin.processes import spawn
from gpuplugin.snapshot import release
from gpuplugin.snapshot.release import PROBLEM
from gpushim.ground.errors import GpushimError

Steps = Callable[[LettingGo, list[Any], asyncio.Event], Awaitable[None]]


def with_one(steps: Steps) -> list[Any]:
    """Let steps be done with one whose closing ends at an event; return what was told."""
    told: list[Any] = []

    async def run() -> None:
        event = asyncio.Event()

        async def close() -> None:
            told.append("closes")
            await event.wait()

        one = LettingGo(asyncio.get_running_loop().create_task, close, lambda: told.append("wakes"), told.append, "x")
        await steps(one, told, event)

    asyncio.run(run())
    return told


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def alone() -> None:
        return None

    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(spawn, "wait_for_all", alone)  # other tests may have left children of this process
    return tmp_path


def test_let_go_and_taken() -> None:
    async def steps(one: LettingGo, told: list[Any], closed: asyncio.Event) -> None:
        closed.set()
        assert not one.held()
        await one.let_go()
        assert one.held()
        assert one.state["closed"]
        one.take()
        assert (one.held(), one.state, one.turns) == (False, {"released": None, "closed": False}, 2)

    assert with_one(steps) == [PROBLEM, "closes", "wakes", "", "wakes"]


def test_a_file_of_a_script_counts_as_much(state: Path) -> None:
    async def steps(one: LettingGo, told: list[Any], closed: asyncio.Event) -> None:
        (Path(release.prepare()) / release.NAME).touch(0o600)
        assert one.held()
        await asyncio.sleep(0)
        one.take()
        assert one.held()  # it is still being closed
        closed.set()
        while one.held():
            await asyncio.sleep(0)

    assert with_one(steps) == [PROBLEM, "closes", "wakes", "wakes", ""]


def test_what_does_not_end_is_told_and_the_next_one_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letting_go, "CLOSING", 0.05)

    async def steps(one: LettingGo, told: list[Any], closed: asyncio.Event) -> None:
        with pytest.raises(GpushimError, match="a process of x, or a refresh, is in the driver"):
            await one.let_go()
        assert not one.state["closed"]
        closed.set()
        await one.let_go()
        assert one.state["closed"]

    assert with_one(steps) == [PROBLEM, "closes", "wakes"]
