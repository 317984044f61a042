"""How long to wait before the next request to the API server, so that not all nodes come at once."""

from __future__ import annotations

import random
import time

LEAST, MOST = 1.0, 30.0  # seconds between tries
SPREAD = 5.0  # seconds in which nodes come back whose watches have ended together


def roughly(seconds: float) -> float:
    """Return a time to wait, `seconds` on average, that differs on each node and each time.

    Nodes that began at once do not stay together.
    """
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


class Pause:
    """The wait before the next try: longer each time, until one has lasted; and not all nodes at once."""

    def __init__(self) -> None:
        self._next, self._begun = LEAST, time.monotonic()

    def seconds(self) -> float:
        """Return the next pause, which begins now."""
        if time.monotonic() - self._begun > MOST:
            self._next = LEAST
        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._next, self._begun = min(2 * self._next, MOST), time.monotonic() + pause
        return pause


def apart(end: float) -> None:
    """Wait for a while, another one on each node, of SPREAD seconds at most; not after `end` of time.monotonic()."""
    if time.monotonic() < end:
        time.sleep(random.uniform(0, SPREAD))  # noqa: S311 - no secret
