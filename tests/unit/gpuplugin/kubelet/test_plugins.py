"""Which plugins listen: those that tell what they are, and those that lie, hang, say too much, or are nobody's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from gpuplugin.kubelet import plugins, sockets
from gpuplugin.kubelet.plugins import DRIVER, Plugin, Plugins
from gpushim.containers.kubelet import PLUGINS
from unit.gpuplugin.kubelet.registrar import driver


@pytest.fixture
def top(folder: Path) -> Path:
    for name in (plugins.REGISTRY, PLUGINS):
        (folder / name).mkdir()
    return folder


def listen(path: Path) -> socket.socket:
    """Listen, and never answer."""
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(1)
    return found


def test_a_name_that_is_no_text_is_left_alone(top: Path) -> None:
    with listen(top / plugins.REGISTRY / os.fsdecode(b"a\xff.sock")):
        assert look(top) == []


def look(top: Path, times: int = 1) -> list[Plugin]:
    async def looked() -> list[Plugin]:
        found = Plugins()
        return [await found.look(str(top)) for _ in range(times)][-1]

    return asyncio.run(looked())


@pytest.mark.parametrize("place", ["plugins_registry/x.sock", "plugins_registry/x/y", "device-plugins/nvidia.sock"])
def test_a_driver_says_who_it_is(top: Path, place: str) -> None:
    async def asked() -> None:
        found = Plugins()
        async with driver(top / place):
            assert await found.look(str(top)) == [Plugin(str(top / place), DRIVER, "gpu.nvidia.com")]
        assert (top / place).is_socket()
        assert await found.look(str(top)) == []

    asyncio.run(asked())


@pytest.mark.parametrize("place", ["plugins_registry/.x", "device-plugins/gpushim-gpu.sock", "x.sock"])
def test_where_kubelet_does_not_look(top: Path, place: str) -> None:
    with listen(top / place):
        assert look(top) == []


def test_our_own_driver_is_nobody_else(top: Path) -> None:
    with listen(top / "plugins_registry/gpushim-1f.sock"):
        assert look(top) == []


def test_who_was_seen_lately_is_not_looked_for_again(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        found = Plugins()
        async with driver(top / "plugins_registry/x"):
            assert len(await found.list_lately(str(top))) == 1
        assert len(await found.list_lately(str(top))) == 1
        monkeypatch.setattr(plugins, "LATELY", 0.0)
        assert await found.list_lately(str(top)) == []

    asyncio.run(asked())


def test_nothing_behind_a_link_is_looked_at(top: Path) -> None:
    async def asked() -> None:
        async with driver(top / "aside/x"):
            (top / "plugins_registry/link").symlink_to(top / "aside")
            assert await Plugins().look(str(top)) == []

    asyncio.run(asked())


def test_who_hangs_costs_a_second_and_is_asked_again(top: Path) -> None:
    async def asked() -> None:
        found = Plugins()
        async with driver(top / "plugins_registry/a", slow=60), driver(top / "plugins_registry/b", "b"):
            began = time.monotonic()
            assert [one.name for one in await found.look(str(top))] == ["b"]
            assert time.monotonic() - began < 2 * plugins.DEADLINE
            assert len(found._known) == 1

    asyncio.run(asked())


def test_no_number_of_sockets_costs_all_descriptors(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def nobody(path: str) -> None:
        asked.append(path)

    monkeypatch.setattr(plugins, "ask", nobody)
    with listen(top / "plugins_registry/0"):
        for folder in ("a", "b"):
            (top / "plugins_registry" / folder).mkdir()
            for number in range(plugins.ASKED):
                os.link(top / "plugins_registry/0", top / "plugins_registry" / folder / str(number))
        look(top)
    assert len(asked) == plugins.ASKED


def test_many_who_hang_hide_nobody(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "ASKED", 2)
    monkeypatch.setattr(plugins, "DEADLINE", 0.1)

    async def asked() -> None:
        async with driver(top / "plugins_registry/x", "x"):
            found = Plugins()
            for _ in range(3):
                there = await found.look(str(top))
            assert [one.name for one in there] == ["x"]

    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(listen(top / f"plugins_registry/0{number}"))
        asyncio.run(asked())


def test_what_is_not_looked_at_is_said_once(
    top: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "NAMES", 5)
    (top / "plugins_registry/a").mkdir()
    for number in range(5):
        listen(top / f"plugins_registry/a/{number}").close()
    look(top, times=3)
    (said,) = caplog.messages
    assert said.startswith(
        f"{top}/plugins_registry has more than 5 names, so another giver of GPUs may not be noticed"
    )


@pytest.mark.parametrize("dead", [65, 1000])
def test_sockets_of_the_dead_hide_nobody(top: Path, dead: int) -> None:
    for number in range(dead):
        listen(top / f"plugins_registry/0{number:03}").close()

    async def asked() -> None:
        async with driver(top / "plugins_registry/x"):
            assert len(await Plugins().look(str(top))) == 1

    asyncio.run(asked())


def test_who_says_too_much_is_nobody(top: Path) -> None:
    async def asked() -> None:
        async with driver(top / "plugins_registry/a", "x" * plugins.LIMIT):
            assert await Plugins().look(str(top)) == [Plugin(str(top / "plugins_registry/a"), "", "")]

    asyncio.run(asked())


def test_who_speaks_no_grpc_is_asked_again(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "DEADLINE", 0.1)
    with listen(top / "plugins_registry/a"):
        assert look(top, times=2) == []


def test_a_known_one_is_not_asked_again(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        found = Plugins()
        async with driver(top / "plugins_registry/a"):
            before = await found.look(str(top))
            monkeypatch.setattr(plugins, "ask", None)
            assert await found.look(str(top)) == before

    asyncio.run(asked())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_users_socket_is_not_believed(top: Path) -> None:
    path = top / "plugins_registry/a"
    os.chmod(top, 0o755)
    os.chmod(path.parent, 0o777)
    ready, listens = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        with listen(path):
            os.write(listens, b"x")
            time.sleep(60)
        os._exit(0)
    try:
        assert os.read(ready, 1)
        assert not plugins.is_believed(str(path))
        with listen(top / "plugins_registry/b"):
            assert plugins.is_believed(str(top / "plugins_registry/b"))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(listens)
