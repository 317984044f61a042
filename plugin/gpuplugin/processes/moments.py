"""Moments that all periodic looks share, so that a node at rest wakes once for them together.

Waking costs such a node more than most looks.
"""

from __future__ import annotations

import time

EACH = 4.0  # seconds between two


def until() -> float:
    """Return the seconds until the next moment, which is the same for all processes."""
    return EACH - time.monotonic() % EACH
