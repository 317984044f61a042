"""The HTTP answerer: what it answers, what it refuses, and who cannot hold it up."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.metrics import httpd
from gpuplugin.metrics.httpd import Answer, Httpd
from unit.gpuplugin.metrics.http_client import ask, get

BODY = b"x" * 3_000_000  # more than the kernel keeps for who does not read


async def answers(path: str, accept: str, authorization: str) -> Answer:
    return Answer(200, BODY) if path == "/big" else Answer(200, f"{path} {accept}".encode())


def serving(top: Path, test: Callable[[str], Awaitable[None]], monkeypatch: Any = None) -> None:
    """Run a test beside a server at a socket."""

    async def run() -> None:
        server, path = Httpd(answers), str(top / "s")
        await server.attend(f"unix:{path}")
        try:
            await test(path)
        finally:
            server.stop()
        assert not os.path.exists(path)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (
            get("/metrics?x=1", "Accept: a", "accept: b"),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8",
        ),
        (get("/metrics?x=1", "Accept: a", "accept: b"), b"\r\n\r\n/metrics a,b"),
        (get("/metrics", method="HEAD"), b"Content-Length: 9\r\nConnection: close\r\n\r\n"),
        (get("/", method="POST"), b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET /\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01\x00\xee\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", b"HTTP/1.1 431 Request Header Fields Too Large"),
    ],
)
def test_what_is_answered(tmp_path: Path, data: bytes, answer: bytes) -> None:
    async def test(path: str) -> None:
        assert answer in await ask(path, data)

    serving(tmp_path, test)


def test_a_request_that_does_not_come_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "ASKING", 0.1)

    async def test(path: str) -> None:
        assert b"HTTP/1.1 408 Request Timeout" in await ask(path, b"GET / HTTP/1.1\r\nslow")

    serving(tmp_path, test)


def test_an_answer_that_nobody_reads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "READING", 0.2)

    async def test(path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path, limit=1024)
        writer.write(get("/big"))
        await asyncio.sleep(0.5)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(BODY))
        writer.close()

    serving(tmp_path, test)


def test_a_large_answer_is_whole(tmp_path: Path) -> None:
    async def test(path: str) -> None:
        assert (await ask(path, get("/big"))).endswith(b"\r\n\r\n" + BODY)

    serving(tmp_path, test)


def test_many_that_say_nothing_make_room_for_one_that_asks(tmp_path: Path) -> None:
    async def test(path: str) -> None:
        silent = [await asyncio.open_unix_connection(path) for _ in range(4 * httpd.CLIENTS)]
        began = time.monotonic()
        assert b"/healthz" in await ask(path, get("/healthz"))
        assert time.monotonic() - began < httpd.ASKING
        ended = [one for one, _ in silent if one.at_eof() or not await asyncio.wait_for(one.read(1), 8)]
        assert len(ended) >= 3 * httpd.CLIENTS
        for _, writer in silent:
            writer.close()

    serving(tmp_path, test)


def test_root_alone_may_connect_to_the_socket(tmp_path: Path) -> None:
    async def test(path: str) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    serving(tmp_path, test)


def test_a_flood_from_one_address_sends_nobody_else_away() -> None:
    async def connected(address: str, port: int) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        return client

    async def run() -> None:
        server, loop = Httpd(answers), asyncio.get_running_loop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        await server.attend(f"127.0.0.1:{port}")
        probe = await connected("127.0.0.1", port)
        flood = [await connected("127.0.0.2", port) for _ in range(2 * httpd.CLIENTS)]
        assert await asyncio.wait_for(loop.sock_recv(flood[0], 1), 1) == b""
        await loop.sock_sendall(probe, get("/x"))
        assert b"200" in await asyncio.wait_for(loop.sock_recv(probe, 99), 8)
        server.stop()
        for each in (probe, *flood):
            each.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["port", "socket", "file"])
def test_what_is_in_use_is_said_once_and_tried_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(httpd, "AGAIN", 0.0)
    path = tmp_path / "s"
    other = socket.socket(socket.AF_INET if kind == "port" else socket.AF_UNIX)
    if kind == "file":
        path.write_text("")
    else:
        other.bind(("127.0.0.1", 0) if kind == "port" else str(path))
        other.listen()
    address = f"127.0.0.1:{other.getsockname()[1]}" if kind == "port" else f"unix:{path}"

    async def run() -> None:
        server = Httpd(answers)
        for _ in range(3):
            await server.attend(address)
        assert [one.message for one in caplog.records if "cannot be served" in one.message] == [caplog.messages[0]]
        other.close()
        if kind == "file":
            path.unlink()
        await server.attend(address)
        reader, writer = await (
            asyncio.open_connection(*address.split(":")) if kind == "port" else asyncio.open_unix_connection(path)
        )
        writer.write(get("/x"))
        assert b"/x" in await reader.read()
        writer.close()
        server.stop()

    asyncio.run(run())


def test_a_server_without_a_socket_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    async def run() -> None:
        server = Httpd(answers)
        monkeypatch.setattr("asyncio.base_events.socket.socket", refused)  # as under RestrictAddressFamilies
        await server.attend("127.0.0.1:9400")
        monkeypatch.undo()
        assert "cannot be served at 127.0.0.1:9400" in server.problem
        assert "the setting metrics" in server.problem
        await server.attend("")
        assert server.problem == ""

    with caplog.at_level("INFO"):
        asyncio.run(run())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_another_address_follows_the_settings(tmp_path: Path) -> None:
    async def run() -> None:
        server = Httpd(answers)
        for name in ("a", "b"):
            await server.attend(f"unix:{tmp_path}/{name}")
            assert b"200" in await ask(str(tmp_path / name), get("/x"))
            assert [one.name for one in tmp_path.iterdir()] == [name]
        await server.attend("")
        assert not [*tmp_path.iterdir()]

    asyncio.run(run())


def test_a_socket_that_is_gone_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "AGAIN", 0.0)

    async def run() -> None:
        server = Httpd(answers)
        await server.attend(f"unix:{tmp_path}/s")
        (tmp_path / "s").unlink()
        await server.attend(f"unix:{tmp_path}/s")
        assert b"200" in await ask(str(tmp_path / "s"), get("/x"))
        server.stop()

    asyncio.run(run())
