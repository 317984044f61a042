"""Which GPUs' calls hang, told to whoever looks at the host: a file, which outlives this process.

The child that polls finds it out, tries such a GPU again by itself, and so renews the entry or ends it.
Out of scope: what a look at the host makes of it (gpushim.inventory.earlier).
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


def hangs(uuid: str) -> bool:
    """Say that a call of a GPU hangs.

    Returns:
        whether that was not known.
    """
    gpus = earlier.hanging(system.state_dir())
    new = gpus.pop(uuid, None) is None
    gpus[uuid] = system.clock()
    _write(dict([*gpus.items()][-MOST:]))
    return new


def answer(uuids: Iterable[str]) -> None:
    """Say that GPUs have answered."""
    gpus = earlier.hanging(system.state_dir())
    left = {uuid: at for uuid, at in gpus.items() if uuid not in uuids}
    if left != gpus:
        _write(left)


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
