"""The compute mode of the GPUs of an MPS group: only its daemon may use them while it serves.

NVML is loaded in a child with a deadline, for it can hang, and an open NVML keeps a GPU from being reset.
The former modes are in a file, so that they are restored also after a kill; the same is done for time slices, which
are numbers, too. Where two groups have a GPU, as one of the settings and a claim, the files of both have its mode
from before either, and the last one restores it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpushim.engines.processes import ask as processes
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, nvml, nvml_program
from gpushim.paths import lock
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpushim.ground.model import Snapshot

    Ask = Callable[[Snapshot, float, Mapping[str, "int | None"]], dict[str, int]]

EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t
# Seconds to put back what GPUs had: before a start, as a driver without persistence mode may be slow, and at an end,
# which is with the daemon's less than the unit has to stop. The part of them in which all are asked for together.
TOTAL, ENDING = 200.0, 50.0
TOGETHER = 0.6
NOTING = ".lock"  # beside the groups; held while one sees what others have, and notes what is left to it


def ask(snapshot: Snapshot, seconds: float, modes: Mapping[str, int | None]) -> dict[str, int]:
    """Set modes in a child, where one is given, and return which they were.

    Args:
        seconds: how long NVML may take.
        modes: by UUID.

    Raises:
        GpushimError: NVML refuses, or takes longer.
    """
    words = nvml_program.program("gpuplugin.mps.compute_mode", nvml_program.library(snapshot), json.dumps(modes))
    answer = processes.program(words, seconds)
    if answer.code is None:
        raise GpushimError(
            f"NVML has not set the compute mode of the GPUs of MPS after {seconds:g} s; {failure.SLOW}", INVENTORY
        )
    try:
        result: dict[str, Any] = json.loads(answer.out.strip().rpartition("\n")[2])
    except ValueError:
        result = {"error": "NVML has ended its process"}
    if "error" in result:
        raise GpushimError(
            f"the compute mode of the GPUs of MPS cannot be set: {result['error']}; gpushim doctor looks into it",
            INVENTORY,
        )
    return result["modes"]  # type: ignore[no-any-return]


def set_modes(snapshot: Snapshot, values: Mapping[str, int], path: str, seconds: float, ask: Ask = ask) -> None:
    """Set modes, or time slices, of GPUs; restore the others that the file has.

    Raises:
        GpushimError: the driver refuses, or takes longer.
    """
    saved = read_saved(path)
    restore(snapshot, path, seconds, ask, values)
    if not values:
        return
    stored = {uuid: value for uuid, value in saved.items() if uuid in values}
    # Who ends has it in his file until he has put it back, maybe after the next line.
    ending = _read_others(path, values)
    former = ask(snapshot, seconds, dict.fromkeys(values))
    in_use = _read_others(path, values)  # after that: what they have set is in their files before
    replace(path, json.dumps({**former, **in_use, **ending, **stored}).encode(), 0o600)
    ask(snapshot, seconds, values)


def restore(
    snapshot: Snapshot,
    path: str,
    seconds: float,
    ask: Ask = ask,
    but: Collection[str] = (),
    total: float = TOTAL,
) -> None:
    """Restore the modes that the file has, but of GPUs that the host has lost; one that fails stops no other.

    Args:
        path: of the file, which keeps `but` and failures, and is removed without any.
        seconds: how long it may take, `total` at most.
        ask: as for `take`.
        but: UUIDs of GPUs that keep theirs.
        total: seconds for all, one by one too.

    Raises:
        GpushimError: the driver refuses, or takes longer.
    """
    end, saved = time.monotonic() + total, read_saved(path)
    present = {gpu["uuid"] for gpu in snapshot["gpus"]}.difference(but)
    values = {uuid: value for uuid, value in saved.items() if uuid in present}
    in_use = _read_others(path, values, alive=True)
    own = {uuid: value for uuid, value in values.items() if uuid not in in_use}
    try:
        if own:
            ask(snapshot, min(seconds, total * TOGETHER), own)
    except GpushimError:
        if len(own) == 1 or not _restore_each(snapshot, path, seconds, ask, own, end):
            raise
    remaining = {uuid: value for uuid, value in saved.items() if uuid in but}
    with lock.held(f"{os.path.dirname(os.path.dirname(path))}/{NOTING}") if in_use else contextlib.nullcontext():
        ended = in_use.keys() - _read_others(path, values, alive=True)  # meanwhile, and have left it to this one
        inherited = {uuid: values[uuid] for uuid in ended}
        _write(path, {**remaining, **inherited})
    if inherited:
        ask(snapshot, min(seconds, end - time.monotonic()), inherited)
        _write(path, remaining)


def _restore_each(
    snapshot: Snapshot, path: str, seconds: float, ask: Ask, values: Mapping[str, int], end: float
) -> bool:
    """Restore one by one what failed together; return whether all are restored."""
    restored = 0
    for number, (uuid, value) in enumerate(values.items()):
        share = (end - time.monotonic()) / (len(values) - number)  # one that hangs takes no other's
        with contextlib.suppress(GpushimError):
            ask(snapshot, min(seconds, share), {uuid: value})
            _write(path, {saved_uuid: mode for saved_uuid, mode in read_saved(path).items() if saved_uuid != uuid})
            restored += 1
    return restored == len(values)


def read_saved(path: str) -> dict[str, int]:
    return {str(uuid): mode for uuid, mode in ensure.own(path).items() if type(mode) is int and 0 <= mode <= 3}


def _write(path: str, values: Mapping[str, int]) -> None:
    """Write the file, or remove it without values; where /run is full, it stays as it is, and has too much."""
    if values:
        with contextlib.suppress(OSError):
            replace(path, json.dumps(values).encode(), 0o600)
    elif os.path.lexists(path):
        os.unlink(path)


def _read_others(path: str, uuids: Collection[str], alive: bool = False) -> dict[str, int]:
    """Return the values of some GPUs in other groups' files; with `alive`, of groups that have a supervisor."""
    folder, name = os.path.split(path)
    top = os.path.dirname(folder)
    values: dict[str, int] = {}
    for group_folder in (f"{top}/{group}" for group in os.listdir(top) if group != NOTING):
        if group_folder != folder and (not alive or lock.is_held(f"{group_folder}/lock")):
            values.update(
                (uuid, value) for uuid, value in read_saved(f"{group_folder}/{name}").items() if uuid in uuids
            )
    return values


def main(library: str, modes: str) -> None:
    former: dict[str, int] = {}
    try:
        with nvml.session(library, lambda step: None) as session:
            for uuid, mode in json.loads(modes).items():
                gpu = session.nvmlDeviceGetHandleByUUID(uuid.encode())
                former[uuid] = session.nvmlDeviceGetComputeMode(gpu)
                if mode is not None:
                    session.nvmlDeviceSetComputeMode(gpu, mode)
        print(json.dumps({"modes": former}))
    except nvml.UnusableError as error:
        print(json.dumps({"error": str(error)}))
