"""NVML and the snapshot, for commands and requests about MIG instances."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from gpushim.ground import seen, system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import failure, nvml, nvml_program, present

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Snapshot


@contextlib.contextmanager
def opened(least: int = 0) -> Iterator[tuple[Any, Snapshot]]:
    """Yield pynvml and the snapshot; where NVML hangs, the process ends after the deadline of the settings.

    Args:
        least: seconds that are waited in any case.
    """
    inventory = present.snapshot()
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    seconds = max(inventory["policy"]["refresh"]["deadline-seconds"], least)
    try:
        with (
            failure.deadline(seconds, system.config_path(), lambda error: None) as waiting,
            nvml.session(nvml_program.library(inventory), waiting) as session,
        ):
            waiting("NVML to answer")
            yield session, inventory
    except nvml.UnusableError as error:
        raise GpushimError(f"{error}{f'; {seen.AS_ROOT}' if os.geteuid() else ''}", INVENTORY) from None
