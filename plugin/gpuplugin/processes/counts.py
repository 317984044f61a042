"""The counts and times of what the plugin does, since its start: of one process, as its log is.

Budget: a microsecond, for it is called within kubelet's calls.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

# What is counted, and what is timed; each by one word more, such as a resource.
ALLOCATIONS, ALLOCATION_ERRORS = "allocations", "allocation errors"
REGISTRATIONS, REGISTRATION_ERRORS = "registrations", "registration errors"
REFRESHES, REFRESH_ERRORS = "refreshes", "refresh errors"
MESSAGES = "messages"  # by level
PREPARES, UNPREPARES = "prepares", "unprepares"  # of claims, by result
_CALLS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 45.0)  # kubelet waits 45 s
BOUNDS = {
    ALLOCATIONS: (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0),
    REFRESHES: (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
    **dict.fromkeys((PREPARES, UNPREPARES), _CALLS),
}  # seconds
WORDS = 1000  # of one thing, most

counted: dict[tuple[str, str], int] = {}
timed: dict[tuple[str, str], list[float]] = {}  # the sum of seconds; how many took up to each bound, and longer


def add(key: str, word: str = "") -> None:
    if (key, word) in counted or len(counted) < WORDS:
        counted[key, word] = counted.get((key, word), 0) + 1


def took(key: str, seconds: float, word: str = "") -> None:
    bounds = BOUNDS[key]
    if (key, word) not in timed and len(timed) >= WORDS:
        return
    row = timed.setdefault((key, word), [0.0] * (len(bounds) + 2))
    row[0] += seconds
    row[1 + bisect_left(bounds, seconds)] += 1


@contextlib.contextmanager
def timing(key: str, failed: str, word: str = "") -> Iterator[None]:
    """Time the block, and count it if it raises."""
    began = time.perf_counter()
    try:
        yield
    except Exception:
        add(failed, word)
        raise
    finally:
        took(key, time.perf_counter() - began, word)


class Messages(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        add(MESSAGES, "error" if record.levelno >= logging.ERROR else "warning")


def messages() -> None:
    """Count warnings and errors that are logged from now on."""
    if not any(isinstance(handler, Messages) for handler in logger.handlers):
        logger.addHandler(Messages(logging.WARNING))
