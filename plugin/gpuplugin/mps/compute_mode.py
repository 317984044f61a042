"""The compute mode of the GPUs of an MPS group: nothing but its daemon may use them while it serves.

NVML is loaded in a child with a deadline, for it can hang, and an open NVML keeps a GPU from being reset.
What the modes were is in a file, so that they are put back also after a kill. Out of scope: when (supervisor.py).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, nvml
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpushim.ground.model import Snapshot

EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t
LIMIT = 1 << 16  # bytes that a child answers


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
    found = _within(seconds, lambda: _modes(snapshot, uuids))
    _save(path, {**found, **stored})
    _within(seconds, lambda: _set(snapshot, dict.fromkeys(uuids, EXCLUSIVE_PROCESS)))


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
        _within(seconds, lambda: _set(snapshot, modes))
    if not but and os.path.lexists(path):
        os.unlink(path)


def before(path: str) -> dict[str, int]:
    """Return the modes in the file, by UUID."""
    return {str(uuid): mode for uuid, mode in ensure.own(path).items() if type(mode) is int and 0 <= mode <= 3}


def _save(path: str, modes: Mapping[str, int]) -> None:
    replace(path, json.dumps(modes).encode(), 0o600)


def _modes(snapshot: Snapshot, uuids: list[str]) -> dict[str, int]:
    with _session(snapshot) as session:
        return {
            uuid: session.nvmlDeviceGetComputeMode(session.nvmlDeviceGetHandleByUUID(uuid.encode())) for uuid in uuids
        }


def _set(snapshot: Snapshot, modes: Mapping[str, int]) -> dict[str, int]:
    with _session(snapshot) as session:
        for uuid, mode in modes.items():
            session.nvmlDeviceSetComputeMode(session.nvmlDeviceGetHandleByUUID(uuid.encode()), mode)
    return {}


def _session(snapshot: Snapshot) -> Any:
    return nvml.session(nvml_child.library(snapshot), lambda what: None)


def _within(seconds: float, ask: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Let a child do something, and return what it found."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:  # one thread: a supervisor has no other
        _answer(writing, ask)
    os.close(writing)
    waits = 0
    try:
        data = b""
        while select.select([reading], [], [], seconds)[0]:
            more = os.read(reading, LIMIT)
            if not more:
                return _answered(data)
            data += more
        waits = os.WNOHANG  # a driver that hangs holds it, killed or not
        raise GpushimError(
            f"NVML has not set the compute mode of the GPUs of MPS after {seconds:g} s; {failure.SLOW}", INVENTORY
        )
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, waits)


def _answered(data: bytes) -> dict[str, int]:
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        found = {"error": "NVML has ended its process"}
    if "error" in found:
        raise GpushimError(
            f"the compute mode of the GPUs of MPS cannot be set: {found['error']}; gpushim doctor looks into it",
            INVENTORY,
        )
    return found["modes"]  # type: ignore[no-any-return]


def _answer(writing: int, ask: Callable[[], dict[str, int]]) -> None:
    """Be the child."""
    try:
        try:
            found: dict[str, Any] = {"modes": ask()}
        except nvml.UnusableError as error:
            found = {"error": str(error)}
        os.write(writing, json.dumps(found).encode())
    finally:
        sys.stderr.flush()
        os._exit(0)
