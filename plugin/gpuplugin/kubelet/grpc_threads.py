"""The threads that gRPC has of its own: they are to leave a node that rests alone.

Out of scope: what is asked and answered.
"""

from __future__ import annotations

import ctypes

import grpc.aio

SLACK_NS = 500_000_000  # by which a timer of theirs may be late
PR_SET_TIMERSLACK = 29  # prctl(2)


async def begin() -> None:
    """Start the threads of gRPC, whose timers may be late: with many cores they wake a node ten times a second, else.

    It has two lists of timers for each core, at most 32, and looks at each list every second. Threads have what the
    one that started them had then (prctl(2)); so this comes before all else that uses gRPC.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)
    try:
        server = grpc.aio.server()
    finally:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(0), 0, 0, 0)  # as this thread had it
    await server.stop(None)
