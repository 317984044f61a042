"""The compute mode of the GPUs of an MPS group: nothing but its daemon may use them while it serves.

NVML is loaded in a child with a deadline, for it can hang, and an open NVML keeps a GPU from being reset.
What the modes were is in a file, so that they are put back also after a kill; the same is done for time slices, which
are numbers, too. Where two groups have a GPU, as one of the settings and a claim, the files of both have what it was
before either, and the last one puts that back.
Out of scope: when (supervisor.py), how time slices are set (time_slice.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child
from gpushim.engines.processes import ask as processes
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, nvml
from gpushim.paths import lock
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpushim.ground.model import Snapshot

    Ask = Callable[[Snapshot, float, Mapping[str, "int | None"]], dict[str, int]]

EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t
# Seconds to put back what GPUs had: before a start, as a driver without persistence mode may be slow, and at an end,
# which is with the daemon's less than the unit has to stop. The part of them in which all are asked for together.
WHOLE, ENDING = 200.0, 50.0
TOGETHER = 0.6
NOTING = ".lock"  # beside the groups; held while one sees what others have, and notes what is left to it


def ask(snapshot: Snapshot, seconds: float, modes: Mapping[str, int | None]) -> dict[str, int]:
    """Have a child set modes, where one is told, and say which they were.

    Args:
        snapshot: of this host.
        seconds: how long NVML may take.
        modes: by UUID.

    Raises:
        GpushimError: NVML refuses, or takes longer.
    """
    words = nvml_child.program("gpuplugin.mps.compute_mode", nvml_child.library(snapshot), json.dumps(modes))
    answer = processes.program(words, seconds)
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


def take(snapshot: Snapshot, values: Mapping[str, int], path: str, seconds: float, ask: Ask = ask) -> None:
    """Let GPUs have modes, or time slices, from now on; what the file has besides is put back.

    Args:
        snapshot: of this host.
        values: by UUID.
        path: of the file.
        seconds: how long it may take.
        ask: sets and says them.

    Raises:
        GpushimError: the driver refuses, or takes longer.
    """
    saved = before(path)
    give_back(snapshot, path, seconds, ask, values)
    if not values:
        return
    stored = {uuid: value for uuid, value in saved.items() if uuid in values}
    known = _others(path, values)  # who ends has it in his file until he has put it back, maybe after the next line
    found = ask(snapshot, seconds, dict.fromkeys(values))
    others = _others(path, values)  # after that: what they have set is in their files before
    replace(path, json.dumps({**found, **others, **known, **stored}).encode(), 0o600)
    ask(snapshot, seconds, values)


def give_back(
    snapshot: Snapshot,
    path: str,
    seconds: float,
    ask: Ask = ask,
    but: Collection[str] = (),
    whole: float = WHOLE,
) -> None:
    """Put back what the file has; GPUs that the host has lost are left out, and one that fails keeps no other.

    Args:
        snapshot: of this host.
        path: of the file, which has what is kept or failed, and is removed where that is nothing.
        seconds: how long it may take, `whole` at most.
        ask: as for `take`.
        but: UUIDs of GPUs that keep theirs.
        whole: seconds for all, one by one too.

    Raises:
        GpushimError: the driver refuses, or takes longer.
    """
    late, saved = time.monotonic() + whole, before(path)
    here = {gpu["uuid"] for gpu in snapshot["gpus"]}.difference(but)
    values = {uuid: value for uuid, value in saved.items() if uuid in here}
    others = _others(path, values, alive=True)
    mine = {uuid: value for uuid, value in values.items() if uuid not in others}
    try:
        if mine:
            ask(snapshot, min(seconds, whole * TOGETHER), mine)
    except GpushimError:
        if len(mine) == 1 or not _each(snapshot, path, seconds, ask, mine, late):
            raise
    left = {uuid: value for uuid, value in saved.items() if uuid in but}
    with lock.held(f"{os.path.dirname(os.path.dirname(path))}/{NOTING}") if others else contextlib.nullcontext():
        ended = others.keys() - _others(path, values, alive=True)  # meanwhile, and have left it to this one
        theirs = {uuid: values[uuid] for uuid in ended}
        _write(path, {**left, **theirs})
    if theirs:
        ask(snapshot, min(seconds, late - time.monotonic()), theirs)
        _write(path, left)


def _each(snapshot: Snapshot, path: str, seconds: float, ask: Ask, values: Mapping[str, int], late: float) -> bool:
    """Put back one by one what could not be together; say whether all are."""
    done = 0
    for number, (uuid, value) in enumerate(values.items()):
        share = (late - time.monotonic()) / (len(values) - number)  # one that hangs takes no other's
        with contextlib.suppress(GpushimError):
            ask(snapshot, min(seconds, share), {uuid: value})
            _write(path, {one: was for one, was in before(path).items() if one != uuid})
            done += 1
    return done == len(values)


def before(path: str) -> dict[str, int]:
    """Return what is in the file, by UUID."""
    return {str(uuid): mode for uuid, mode in ensure.own(path).items() if type(mode) is int and 0 <= mode <= 3}


def _write(path: str, values: Mapping[str, int]) -> None:
    """Have values in the file, or no file; where /run is full, it stays as it is, and so has too much."""
    if values:
        with contextlib.suppress(OSError):
            replace(path, json.dumps(values).encode(), 0o600)
    elif os.path.lexists(path):
        os.unlink(path)


def _others(path: str, uuids: Collection[str], alive: bool = False) -> dict[str, int]:
    """Return what is in other groups' files about some; with `alive`, of those that have a supervisor."""
    folder, name = os.path.split(path)
    top = os.path.dirname(folder)
    found: dict[str, int] = {}
    for other in (f"{top}/{group}" for group in os.listdir(top) if group != NOTING):
        if other != folder and (not alive or lock.is_held(f"{other}/lock")):
            found.update((uuid, value) for uuid, value in before(f"{other}/{name}").items() if uuid in uuids)
    return found


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
