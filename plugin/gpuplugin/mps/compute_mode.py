"""The compute mode of the GPUs of an MPS group: nothing but its daemon may use them while it serves.

NVML is loaded in a child with a deadline, for it can hang, and an open NVML keeps a GPU from being reset.
What the modes were is in a file, so that they are put back also after a kill. Out of scope: when (supervisor.py).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child
from gpushim.engines.processes import ask
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, nvml
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpushim.ground.model import Snapshot

EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t


def take(snapshot: Snapshot, uuids: list[str], path: str, seconds: float) -> None:
    """Let each GPU be used by one process only, which will be the daemon's; what the file has besides is put back.

    Args:
        snapshot: of this host.
        uuids: of the GPUs.
        path: of the file.
        seconds: how long NVML may take.

    Raises:
        GpushimError: NVML refuses, or takes longer.
    """
    saved = before(path)
    give_back(snapshot, path, seconds, uuids)
    stored = {uuid: mode for uuid, mode in saved.items() if uuid in uuids}
    found = _ask(snapshot, seconds, dict.fromkeys(uuids))
    replace(path, json.dumps({**found, **stored}).encode(), 0o600)
    _ask(snapshot, seconds, dict.fromkeys(uuids, EXCLUSIVE_PROCESS))


def give_back(snapshot: Snapshot, path: str, seconds: float, but: Collection[str] = ()) -> None:
    """Put the modes back that the file has; GPUs that the host has lost are left out.

    Args:
        snapshot: of this host.
        path: of the file, which is removed.
        seconds: how long NVML may take.
        but: UUIDs of GPUs that keep theirs.

    Raises:
        GpushimError: NVML refuses, or takes longer.
    """
    here = {gpu["uuid"] for gpu in snapshot["gpus"]}.difference(but)
    modes = {uuid: mode for uuid, mode in before(path).items() if uuid in here}
    if modes:
        _ask(snapshot, seconds, modes)
    if not but and os.path.lexists(path):
        os.unlink(path)


def before(path: str) -> dict[str, int]:
    """Return the modes in the file, by UUID."""
    return {str(uuid): mode for uuid, mode in ensure.own(path).items() if type(mode) is int and 0 <= mode <= 3}


def _ask(snapshot: Snapshot, seconds: float, modes: Mapping[str, int | None]) -> dict[str, int]:
    """Have a child set modes, where one is told, and say which they were."""
    words = nvml_child.program("gpuplugin.mps.compute_mode", nvml_child.library(snapshot), json.dumps(modes))
    answer = ask.program(words, seconds)
    if answer.code is None:
        raise GpushimError(
            f"NVML has not set the compute mode of the GPUs of MPS after {seconds:g} s; {failure.SLOW}", INVENTORY
        )
    try:
        found: dict[str, Any] = json.loads(answer.out.strip().rpartition("\n")[2])
    except ValueError:
        found = {"error": "NVML has ended its process"}
    if "error" in found:
        raise GpushimError(
            f"the compute mode of the GPUs of MPS cannot be set: {found['error']}; gpushim doctor looks into it",
            INVENTORY,
        )
    return found["modes"]  # type: ignore[no-any-return]


def main(library: str, given: str) -> None:
    """Be the child."""
    was: dict[str, int] = {}
    try:
        with nvml.session(library, lambda what: None) as session:
            for uuid, mode in json.loads(given).items():
                gpu = session.nvmlDeviceGetHandleByUUID(uuid.encode())
                was[uuid] = session.nvmlDeviceGetComputeMode(gpu)
                if mode is not None:
                    session.nvmlDeviceSetComputeMode(gpu, mode)
        print(json.dumps({"modes": was}))
    except nvml.UnusableError as error:
        print(json.dumps({"error": str(error)}))
