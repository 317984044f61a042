"""The file of GPUs whose calls hang, for refreshes of the host's snapshot; it outlives this process.

The child that polls finds it out, tries such a GPU again by itself, and so renews the entry or ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from gpushim.ground import system
from gpushim.ground.logs import logger
from gpushim.inventory import earlier
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 64  # GPUs, those that hung last


def add(uuid: str) -> bool:
    """Note that a call of a GPU hangs; return whether that is new."""
    gpus = earlier.hanging(system.state_dir())
    new = gpus.pop(uuid, None) is None
    gpus[uuid] = system.clock()
    _write(dict([*gpus.items()][-MOST:]))
    return new


def remove(uuids: Iterable[str]) -> None:
    """Note that GPUs have answered, which they do each few seconds: mostly there is no file."""
    if not os.path.lexists(f"{system.state_dir()}/{earlier.HUNG}"):
        return
    gpus = earlier.hanging(system.state_dir())
    still_hung = {uuid: at for uuid, at in gpus.items() if uuid not in uuids}
    if still_hung != gpus:
        _write(still_hung)


def _write(gpus: dict[str, float]) -> None:
    path = f"{system.state_dir()}/{earlier.HUNG}"
    try:
        if gpus:
            replace(path, json.dumps({"boot": system.boot(), "gpus": gpus}).encode(), 0o600, durable=False)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    except OSError as error:
        logger.warning(
            "%s cannot be written, so gpushim refresh waits for GPUs whose calls hang: %s", path, error.strerror
        )
