"""Who asks for a refresh is served by one, or by the next."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from gpushim.refresh import on_demand


@pytest.mark.parametrize("storm", [False, True])
def test_those_who_come_within_a_moment_are_served_together(
    tmp_path: Path, storm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come, one each few milliseconds: the first does not wait for the last."""
    monkeypatch.setattr(on_demand, "MOMENT", 1.0)  # a processor that others have does not end it
    path, over, asked = str(tmp_path / "sock"), threading.Event(), list[socket.socket]()
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(1000)  # more than come, so that none waits in connect

        def ask() -> None:
            asked.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
            asked[-1].connect(path)
            asked[-1].send(b"question")

        def rush() -> None:
            while not over.wait(0.005) and len(asked) < 900:
                ask()

        ask()
        ask()
        rushing = threading.Thread(target=rush if storm else over.wait)
        rushing.start()
        agreed = on_demand._gather(listening, b"question", stack)
        over.set()
        rushing.join()
    assert agreed > 2 if storm else agreed == 2
    assert len(asked) < 900
