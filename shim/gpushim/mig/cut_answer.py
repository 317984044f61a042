"""How a request to cut GPUs is carried out (cut_request.py)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.mig import cut, cut_request, layout_file, session
from gpushim.paths import lock
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushim.ground.model import Snapshot


def give(state: str, seconds: int, relist: Callable[[], object]) -> None:
    """Carry out the request that has no answer, and write that.

    Args:
        state: the state directory.
        seconds: that NVML may take.
        relist: lists the GPUs again.

    Raises:
        GpushimError: somebody else cuts GPUs all the time, or NVML cannot be used; it is tried again.
    """
    with lock.held(f"{state}/{cut_request.LOCK}"):
        request = cut_request.read_open(state)  # not before: it may have been taken back
        if not request:
            return
        answer: dict[str, Any] = {"request": request, "problem": "", "gpus": {}}
        with session.opened(seconds) as (nvml, inventory):
            try:
                changes = _plan(nvml, inventory, request)
            except GpushimError as error:
                answer["problem"] = str(error)
            else:
                answer["gpus"] = {
                    change.gpu["uuid"]: problem
                    for change in changes
                    if change.differs
                    and (problem := _carry_out(nvml, inventory, change, request["free"])) is not None
                }
        if request["free"]:
            relist()
        replace(f"{state}/{cut_request.ANSWER}", json.dumps(answer).encode(), 0o600)


def _plan(nvml: Any, inventory: Snapshot, request: dict[str, Any]) -> list[cut.Change]:
    """Return what the layout of a request changes.

    Raises:
        GpushimError: there is none, or it is not for this host.
    """
    entries = layout_file.read(f"{os.path.dirname(system.config_path())}/{cut_request.LAYOUTS}", request["layout"])
    changes = cut.plan(nvml, inventory, entries, cut.list_users(inventory)[0])
    for change in changes:
        if change.gpu["uuid"] in request["partitions"]:
            raise GpushimError(f"{cut.call(change.gpu)} is cut on demand; name it in no layout")
    return changes


def _carry_out(nvml: Any, inventory: Snapshot, change: cut.Change, free: list[str]) -> str | None:
    """Return why a GPU is not as its layout says; "" if it waits to be free, None if it is."""
    if change.gpu["uuid"] not in free:
        return ""
    try:
        cut.carry_out(nvml, inventory, change)
    except cut.UsedError as error:
        logger.warning("%s", error)
        return ""
    except GpushimError as error:
        return str(error)  # which the agent tells
    logger.info("%s is cut as the MIG layout says", cut.call(change.gpu))
    return None
