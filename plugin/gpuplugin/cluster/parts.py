"""The parts of a process at the API server: each a thread that goes on after an error, and all end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.pause import Pause
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    Part = Callable[[], Iterator[Any]]  # yields when it has done something, and is begun anew when it returns

RACE = 10.0  # seconds after which a signal is seen that comes just as the wait for one begins


def run(parts: Collection[Part], once: bool = False) -> None:
    """Run parts until a signal ends the process.

    Args:
        parts: of the process.
        once: return when one has done something.

    Raises:
        GpushimError: a part has ended, which is a bug.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # at once: threads in TLS do not outlive the interpreter's end
    for part in parts:
        threading.Thread(target=_keep, args=(part, once, ended), daemon=True).start()
    while not ended.wait(RACE):
        pass
    if not once:
        raise GpushimError("a part of the work at the API server has ended; its traceback is above", FAILED)


def _keep(part: Part, once: bool, ended: threading.Event) -> None:
    """Repeat a part; log an error once, and try again later and later."""
    pause, last_error = Pause(), ""
    try:
        while True:
            try:
                for _ in part():
                    last_error = ""
                    if once:
                        return
            except GpushimError as error:
                if str(error) != last_error:
                    logger.warning("%s; retrying", error)
                last_error = str(error)
            time.sleep(pause.seconds())
    finally:
        ended.set()
