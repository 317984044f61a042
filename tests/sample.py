"""Which of very many cases a run takes: tools/test takes others with each commit, so that in time all are tried.

A run ends with VARIABLES, which repeat it. GPUSHIM_SHARE=N chooses; GPUSHIM_LONG=1 takes all. GPUSHIM_HALF=0 takes
half of the cases of each unit test of modules, GPUSHIM_HALF=1 the other: the fast ones are all run, each on one
Python. Of slow ones, and of those of tests/e2e that have many (conftest.HALVED, QUARTERED), a run takes a half or a
quarter, and with other commits the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = bool(os.environ.get("GPUSHIM_LONG"))
SHARE = int(os.environ.get("GPUSHIM_SHARE") or "0")
HALF = os.environ.get("GPUSHIM_HALF")
VARIABLES = " ".join(
    [f"GPUSHIM_SHARE={SHARE}", *[f"GPUSHIM_HALF={HALF}"] * bool(HALF), *["GPUSHIM_LONG=1"] * LONG],
)


def share(cases: Iterable[T], parts: int) -> list[T]:
    """Take one of so many parts of the cases."""
    found = list(cases)
    return found if LONG else found[SHARE % parts :: parts]


def taken(number: int, parts: int) -> bool:
    """Return whether one of so many parts, of two to four, takes a test's case of this number."""
    return LONG or not HALF or (SHARE // 60 + number + int(HALF)) % parts == 0  # not by what `share` goes by


def turn_of(name: str) -> bool:
    """Return whether a test of this name is to go the second of two ways: a third; GPUSHIM_SHARE=0, 1, 2 for all."""
    return (SHARE + len(name)) % 3 == 0


def turn(parts: int, which: int = 0) -> bool:
    """Return whether this run does what one of so many does, this one."""
    return LONG or SHARE % parts == which
