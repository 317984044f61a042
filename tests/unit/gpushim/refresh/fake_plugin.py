"""A device plugin that listens at its socket."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gpushim.refresh import plugin_socket


@contextlib.contextmanager
def plugin(folder: Path, answer: Callable[[int], bytes]) -> Iterator[None]:
    """A plugin that answers each question, which it counts from 1."""
    fd = os.open(folder, os.O_PATH)  # by which its path is not too long
    address = f"/proc/self/fd/{fd}/{plugin_socket.SOCKET}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        ended = threading.Event()

        def serve() -> None:
            for asked in itertools.count(1):
                client = server.accept()[0]
                with client, contextlib.suppress(OSError):
                    if ended.is_set():
                        return
                    client.recv(100)
                    client.sendall(answer(asked))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(address)
            thread.join(20)
            os.close(fd)
