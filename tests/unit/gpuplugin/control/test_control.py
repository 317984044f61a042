"""The plugin's own socket: root's alone, bounded, and another's place is not taken."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Callable

import pytest

from gpuplugin.control import control
from gpuplugin.control.control import NAME, Control, near
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.control.client import ask


async def well() -> dict[str, Any]:
    return {"all": "well"}


async def refused() -> dict[str, Any]:
    raise GpushimError("not now")


DEEDS: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {"status": well, "take": refused}


def with_control(folder: Path, work: Callable[[Control], Awaitable[None]]) -> None:
    async def run() -> None:
        one = Control(DEEDS)
        await one.attend(str(folder))
        try:
            await work(one)
        finally:
            one.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b'{"do": "status"}\n', {"all": "well"}),
        (b'{"do": "take"}\n', {"error": "not now"}),
        (b'{"do": "dance"}\n', "does not understand"),
        (b'{"do": []}\n', "does not understand"),
        (b"[1]\n", "does not understand"),
        (b"\xff\n", "does not understand"),
        (b"[" * 3000 + b"\n", "does not understand"),
        (b"x" * 100_000 + b"\n", "does not understand"),
    ],
)
def test_answers(tmp_path: Path, data: bytes, answer: Any) -> None:
    async def work(_: Control) -> None:
        found = await ask(tmp_path, data)
        assert found == answer if isinstance(answer, dict) else answer in found["error"]

    with_control(tmp_path, work)


def test_who_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DEADLINE", 0.1)

    async def work(_: Control) -> None:
        assert "error" in await ask(tmp_path, b"{")

    with_control(tmp_path, work)


def test_nobody_but_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(_: Control) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        monkeypatch.setattr("gpuplugin.kubelet.sockets._ROOT", 4343)
        assert (await ask(tmp_path, b'{"do": "status"}\n'))["error"] == "only root may ask the device plugin"

    with_control(tmp_path, work)


def test_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLIENTS", 1)

    async def work(_: Control) -> None:
        with near(str(tmp_path)) as path:
            waiting = (await asyncio.open_unix_connection(path))[1]
        await asyncio.sleep(0)
        assert "too many" in (await ask(tmp_path, b'{"do": "status"}\n'))["error"]
        waiting.close()

    with_control(tmp_path, work)


def test_the_socket_is_root_s(tmp_path: Path) -> None:
    async def work(_: Control) -> None:
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600

    with_control(tmp_path, work)
    assert [*tmp_path.iterdir()] == []


def test_one_that_nobody_listens_at_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, near(str(tmp_path)) as path:
        dead.bind(path)

    async def work(one: Control) -> None:
        assert await ask(tmp_path, b'{"do": "status"}\n') == {"all": "well"}
        (tmp_path / NAME).unlink()
        await one.attend(str(tmp_path))
        assert await ask(tmp_path, b'{"do": "status"}\n') == {"all": "well"}

    with_control(tmp_path, work)


def test_what_is_no_socket_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_text("mine")

    async def work(one: Control) -> None:
        await one.attend(str(tmp_path))
        assert [message for message in caplog.messages if "is in the way" in message] == caplog.messages[:1]

    with_control(tmp_path, work)
    assert (tmp_path / NAME).read_text() == "mine"


def test_another_plugin_s_place_is_not_taken_until_it_ends(tmp_path: Path) -> None:
    async def work(first: Control) -> None:
        second = Control({"status": refused})
        await second.attend(str(tmp_path))
        assert await ask(tmp_path, b'{"do": "status"}\n') == {"all": "well"}
        second.stop()
        assert (tmp_path / NAME).exists()
        first.stop()
        await second.attend(str(tmp_path))
        assert await ask(tmp_path, b'{"do": "status"}\n') == {"error": "not now"}
        second.stop()

    with_control(tmp_path, work)


@pytest.mark.parametrize(("patience", "said"), [(60.0, False), (-1.0, True)])
def test_an_instance_that_is_being_replaced_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, patience: float, said: bool
) -> None:
    monkeypatch.setattr(control, "PATIENCE", patience)

    async def work(_: Control) -> None:
        await Control({}).attend(str(tmp_path))

    with_control(tmp_path, work)
    assert ("another plugin listens" in caplog.text) == said


def test_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    async def work(_: Control) -> None:
        assert await ask(folder, b'{"do": "status"}\n') == {"all": "well"}

    with_control(folder, work)


def test_no_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(_: Control) -> None:
        assert "cannot be made" in caplog.text

    with_control(tmp_path / "none", work)
