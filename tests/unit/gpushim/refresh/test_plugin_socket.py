"""Asking the device plugin: whoever answers late, byte by byte, or without end is left."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.refresh import plugin_socket
from unit.gpushim.refresh.fake_plugin import plugin


@contextlib.contextmanager
def answering(folder: Path, part: bytes, pause: float) -> Iterator[None]:
    """Somebody who answers with the same part again and again, until it is left."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / plugin_socket.SOCKET))
        server.listen()

        def serve() -> None:
            client = server.accept()[0]
            with client, contextlib.suppress(OSError):
                for _ in range(2000):  # or a client that waits for ever would hang the test
                    client.sendall(part)
                    time.sleep(pause)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(20)


def devices(*healthy: bool) -> bytes:
    return json.dumps({"resources": [{"devices": [{"healthy": one} for one in healthy]}]}).encode() + b"\n"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((devices(True), devices(True, False), devices(False)), True),
        ((devices(),), True),
        ((b'{"error": "no"}\n',), False),
        ((b"nothing\n",), False),
        ((devices(True),), False),  # until it is too late
    ],
)
def test_unhealthy_first(tmp_path: Path, answers: tuple[bytes, ...], told: bool) -> None:
    with plugin(tmp_path, lambda asked: answers[min(asked, len(answers)) - 1]):
        assert plugin_socket.wait_for_unhealthy(str(tmp_path), 1.0 if answers == (devices(True),) else 30.0) is told


def test_no_plugin_is_not_waited_for(tmp_path: Path) -> None:
    assert plugin_socket.wait_for_unhealthy(str(tmp_path), 30)
    with plugin(tmp_path, lambda _: b""):
        pass
    assert plugin_socket.wait_for_unhealthy(str(tmp_path), 30)  # of one that was killed the socket is left


def test_an_answer(tmp_path: Path) -> None:
    with answering(tmp_path, b"{}\n", 0.01):
        assert plugin_socket.exchange(str(tmp_path), b"x\n", 5).endswith(b"{}\n")


def test_one_that_answers_byte_by_byte_gets_no_more_time(tmp_path: Path) -> None:
    with answering(tmp_path, b"x", 0.002), pytest.raises(socket.timeout):
        plugin_socket.exchange(str(tmp_path), b"x\n", 0.3)


def test_one_that_does_not_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_socket, "LIMIT", 1 << 16)
    with answering(tmp_path, b"x" * 4096, 0):
        assert len(plugin_socket.exchange(str(tmp_path), b"x\n", 30)) < 1 << 18


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plugin_socket.exchange(str(tmp_path), b"x\n", 5)
