"""Moments in which all look that look now and then: a node that rests is woken once for them together.

Waking costs a node that rests more than most looks. Out of scope: who looks, and what at.
"""

from __future__ import annotations

import ctypes
import time

EACH = 4.0  # seconds between two
SLACK_NS = 500_000_000  # by which a timer of gRPC's may be late
PR_SET_TIMERSLACK = 29  # prctl(2)


def until(number: int = 1) -> float:
    """Return the seconds until the next moment of all, or of each so many: the same for all processes."""
    seconds = number * EACH
    return seconds - time.monotonic() % seconds


async def begin_grpc() -> None:
    """Start the threads of gRPC, whose timers may be late: with many cores they wake a node ten times a second, else.

    It has two lists of timers for each core, at most 32, and looks at each list every second. Threads have what the
    one that started them had then (prctl(2)); so this comes before all else that uses gRPC.
    """
    import grpc.aio

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)
    try:
        server = grpc.aio.server()
    finally:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(0), 0, 0, 0)  # as this thread had it
    await server.stop(None)
