"""End a process that waits too long for the driver: nothing else helps when NVML hangs.

Out of scope: how long a create waits for that process (renew.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from gpushim.errors import INVENTORY, GpushimError
from gpushim.inventory import renew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deadline(seconds: int, config: str, failed: Callable[[GpushimError], None]) -> Iterator[Callable[[str], None]]:
    """End the process if the body takes too long; yields `waiting`.

    A thread does it: NVML is C code, and a signal's Python handler would run only after it returns.
    """
    what = ["nothing yet"]

    def give_up() -> None:
        error = GpushimError(
            f"listing the host's GPUs waited {seconds} s for {what[-1]} and gave up; {renew.SLOW} and run gpushim "
            f"refresh; deadline-seconds under [refresh] in {config} sets the time",
            INVENTORY,
        )
        failed(error)
        say(str(error))
        os._exit(INVENTORY)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield what.append
    finally:
        timer.cancel()


def say(sentence: str) -> None:
    """Write a refusal as the last line of stderr, where the parent looks for it."""
    print(f"{renew.PREFIX}{sentence}", file=sys.stderr, flush=True)
