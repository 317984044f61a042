"""Moments in which all look that look now and then: a node that rests is woken once for them together.

Waking costs a node that rests more than most looks. Out of scope: who looks, and what at.
"""

from __future__ import annotations

import time

EACH = 4.0  # seconds between two


def until(number: int = 1) -> float:
    """Return the seconds until the next moment of all, or of each so many: the same for all processes."""
    seconds = number * EACH
    return seconds - time.monotonic() % seconds
