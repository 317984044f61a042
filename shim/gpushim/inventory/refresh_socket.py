"""Ask the packages' service for a refresh: it runs under nobody's limits, and not under those of a create's tenant.

STATE/refresh.sock is of gpushim-refresh.socket. Who connects says by which config.toml and state it goes
(`question`); AGREED says that the service goes by the same; the end of the connection, that there has been a refresh,
or will be none. What came of it, the snapshot and `failure` say. Out of scope: the service (on_demand.py).
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET = "gpushim-refresh.socket"  # the unit
NAME = "refresh.sock"  # in the state directory
AGREED = b"y"
SECONDS = 10.0  # for the service to start, which takes half a second on a host with nothing else to do, and to agree


def question(config: str, state: str) -> bytes:
    """Return what one that goes by these paths says, and one that serves it."""
    return os.fsencode(f"{config}\0{state}")


def refreshed(config: str, state: str, waiting: Callable[[], None]) -> bool:
    """Ask for a refresh, and wait for its end.

    Args:
        config: path of config.toml, absolute.
        state: gpushim's state directory, absolute.
        waiting: is called again and again meanwhile; it sleeps a moment, and may raise.

    Returns:
        whether a service has agreed; if not, there is none for this configuration and state, or it does not answer.
    """
    if not trust.ours(state):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(f"{state}/{NAME}")
            asking.send(question(config, state))
        except OSError:  # nobody listens, or too many wait; root listens, and this is another user
            return False
        agreed, until = False, time.monotonic() + SECONDS
        while agreed or time.monotonic() < until:
            try:
                answer = asking.recv(len(AGREED))
            except BlockingIOError:
                waiting()
                continue
            except OSError:
                return agreed
            if not answer:
                return agreed
            agreed = True
        return False
