"""`gpushim refresh --asked`: one refresh for the creates that have asked gpushim-refresh.socket for it.

A process does one, as NVML's library stays loaded; clients that come meanwhile are the next one's. They read of a
failure where every refresh records it (failure.record).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time

from gpushim.ground import system
from gpushim.ground.errors import USAGE, GpushimError
from gpushim.inventory import renew
from gpushim.refresh import refresh

SECONDS = 2.0  # for the first client's question: its tenant may have little of a processor
MOMENT = 0.02  # for more clients
LATEST = 0.5  # after the first client, however many come: those beyond are the next process's
FIRST = 3  # SD_LISTEN_FDS_START
LONGEST = 2 * 4096  # bytes of two paths


def serve() -> None:
    """Refresh for the clients of the socket that systemd has handed over.

    Raises:
        GpushimError: there is no such socket, or the refresh failed.
    """
    if (os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")) != (str(os.getpid()), "1"):
        raise GpushimError("--asked is for gpushim-refresh.socket; omit it", USAGE)
    question = renew.question(system.config_path(), system.state_dir())
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(fileno=FIRST))
        listening.set_inheritable(False)
        if _gather(listening, question, stack):
            refresh.refresh(patient=True)


def _gather(listening: socket.socket, question: bytes, stack: contextlib.ExitStack) -> int:
    """Agree with clients that ask this question; returns their number; the stack closes the connections."""
    listening.setblocking(False)
    agreed, until = 0, 0.0
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        while events := ready.select(MOMENT if agreed else SECONDS):
            for key, _ in events:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                with contextlib.suppress(OSError):  # it has gone
                    if connection is listening and agreed and time.monotonic() > until:
                        ready.unregister(connection)
                        continue
                    if connection is listening:
                        ready.register(stack.enter_context(connection.accept()[0]), selectors.EVENT_READ)
                        continue
                    ready.unregister(connection)
                    if connection.recv(LONGEST) == question and connection.send(renew.AGREED):
                        until = until or time.monotonic() + LATEST
                        agreed += 1
                        continue
                connection.close()
    return agreed
