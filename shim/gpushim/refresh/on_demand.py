"""`gpushim refresh --asked`: one refresh for the creates that have asked gpushim-refresh.socket for it.

A process does it once, for NVML's library stays loaded; who asks meanwhile is served by the next. How it failed,
those who wait read where every refresh says it (failure.record). Out of scope: asking (inventory/renew.py).
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

SECONDS = 2.0  # for the first to say what it wants: its tenant may have little of a processor
MOMENT = 0.02  # for more of them
LATEST = 0.5  # after the first, however many come: those beyond are the next one's
FIRST = 3  # SD_LISTEN_FDS_START
LONGEST = 2 * 4096  # bytes of two paths


def serve() -> None:
    """Refresh for who asks on the socket that systemd has handed over.

    Raises:
        GpushimError: none was; or the refresh failed.
    """
    if (os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")) != (str(os.getpid()), "1"):
        raise GpushimError("--asked is for gpushim-refresh.socket; omit it", USAGE)
    ours = renew.question(system.config_path(), system.state_dir())
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(fileno=FIRST))
        listening.set_inheritable(False)
        if _gather(listening, ours, stack):
            refresh.refresh(patient=True)


def _gather(listening: socket.socket, ours: bytes, stack: contextlib.ExitStack) -> int:
    """Agree with who goes by what is `ours`; returns how many there are, whose connections the stack closes."""
    listening.setblocking(False)
    agreed, until = 0, 0.0
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        while found := ready.select(MOMENT if agreed else SECONDS):
            for key, _ in found:
                one = key.fileobj
                assert isinstance(one, socket.socket)
                with contextlib.suppress(OSError):  # it has gone
                    if one is listening and agreed and time.monotonic() > until:
                        ready.unregister(one)
                        continue
                    if one is listening:
                        ready.register(stack.enter_context(one.accept()[0]), selectors.EVENT_READ)
                        continue
                    ready.unregister(one)
                    if one.recv(LONGEST) == ours and one.send(renew.AGREED):
                        until = until or time.monotonic() + LATEST
                        agreed += 1
                        continue
                one.close()
    return agreed
