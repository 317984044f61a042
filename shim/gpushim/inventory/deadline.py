"""End a process that waits too long for the driver: nothing else helps when NVML hangs.

Out of scope: how long a create waits for that process (renew.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import renew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LOOK = 0.5  # seconds between looks whether it is hopeless


@contextlib.contextmanager
def deadline(
    seconds: int,
    config: str,
    failed: Callable[[GpushimError], None],
    hopeless: Callable[[], GpushimError | None] = lambda: None,
) -> Iterator[Callable[[str], None]]:
    """End the process if the body takes too long; yields `waiting`.

    Also when `hopeless` says why it will never end: this is told to nobody else, who may have more luck at once.
    A thread does it: NVML is C code, and a signal's Python handler would run only after it returns.
    """
    what, over, until = ["nothing yet"], threading.Event(), time.monotonic() + seconds

    def give_up() -> None:
        error = GpushimError(
            f"listing the host's GPUs waited {seconds} s for {what[-1]} and gave up; {renew.SLOW} and run gpushim "
            f"refresh; deadline-seconds under [refresh] in {config} sets the time",
            INVENTORY,
        )
        failed(error)
        say(str(error))
        os._exit(INVENTORY)

    def watch() -> None:
        while not over.wait(max(0.0, min(LOOK, until - time.monotonic()))):
            if why := hopeless():
                say(str(why))
                os._exit(why.exit_code)
            if time.monotonic() >= until:
                give_up()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield what.append
    finally:
        over.set()


def say(sentence: str) -> None:
    """Write a refusal as the last line of stderr, where the parent looks for it."""
    print(f"{renew.PREFIX}{sentence}", file=sys.stderr, flush=True)
