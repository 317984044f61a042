"""What the children that watch have in common: a GPU, what it is asked, and the lines that they print."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS, POLLS = "events", "polls"
AGAIN = {
    EVENTS: 60.0,
    POLLS: 15.0,
}  # seconds after which who hung is asked again; for events, too, NVML opened
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
UNCORRECTED, VOLATILE = 1, 0  # nvmlMemoryErrorType_t; nvmlEccCounterType_t: since the driver was loaded
DOUBLE_BIT = 1  # nvmlPageRetirementCause_t
MOMENT = 15.0  # seconds before the end of listening in which an event may not have been told: more than SILENCE
TEXT_LIMIT = 200  # characters of an error
HUNG = "its calls to the driver hang"


class Since(NamedTuple):
    """From when on XIDs of a GPU count, in seconds since boot (system.clock); 0: from the beginning.

    Attributes:
        heard: until when its events were listened to.
        bound: when the GPU was found to be bound again, which is later than it was.
    """

    heard: float = 0.0
    bound: float = 0.0


NEVER = Since()


def tell(**line: Any) -> None:
    """Print a line; BrokenPipeError if nobody reads any more."""
    os.write(1, json.dumps(line, separators=(",", ":")).encode() + b"\n")


class Gpu:
    """One GPU to watch.

    Args:
        first: when it may be asked first (time.monotonic).
        since: until when it was listened to.
    """

    def __init__(self, uuid: str, pci: str, first: float, since: Since = NEVER) -> None:
        self.uuid, self.pci, self._first, self.since = uuid, pci, first, since

    @property
    def hung(self) -> bool:
        """Return whether it is too early to ask it."""
        return time.monotonic() < self._first

    def handle(self, nvml: Any) -> Any:
        """Return its handle; NVMLError if it does not answer or is not there."""
        tell(asks=self.uuid)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(self.pci.encode())
        if nvml.nvmlDeviceGetUUID(handle) != self.uuid:
            raise nvml.NVMLError_NotFound
        return handle


def unsupported(nvml: Any) -> tuple[type[Exception], ...]:
    """Return the errors that say that a driver or a GPU does not have a function."""
    return nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound


def text(nvml: Any, error: Exception) -> str:
    """Return an error's sentence; nvidia-ml-py calls a reset a restart."""
    return "the GPU must be reset" if isinstance(error, nvml.NVMLError_ResetRequired) else str(error)[:TEXT_LIMIT]


def ask(nvml: Any, gpu: Gpu) -> tuple[dict[str, Any], list[str]]:
    """Return what a GPU says of its health, and the UUIDs of its MIG instances."""
    from gpushim.inventory.nvml import fabric_problem  # not with the plugin's own process

    migs: list[str] = []
    answer: dict[str, Any] = {
        **dict.fromkeys(("recovery", "rows", "pages", "ecc", "mig", "fabric")),
        "lost": False,
        "error": "",
    }
    try:
        handle = gpu.handle(nvml)
        with contextlib.suppress(*unsupported(nvml)):
            answer["recovery"] = _recovery(nvml, handle)
        try:
            answer["rows"] = [*nvml.nvmlDeviceGetRemappedRows(handle)[2:]]
        except unsupported(nvml):  # before Ampere a GPU retires pages instead
            with contextlib.suppress(*unsupported(nvml)):
                answer["pages"] = len(nvml.nvmlDeviceGetRetiredPages(handle, DOUBLE_BIT))
        with contextlib.suppress(*unsupported(nvml)):
            answer["ecc"] = nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE)
        with contextlib.suppress(*unsupported(nvml)):
            answer["mig"] = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
        answer["fabric"] = "" if answer["mig"] else fabric_problem(nvml, handle)
        migs = [*_migs(nvml, handle)] if answer["mig"] else []
    except nvml.NVMLError as error:
        answer["lost"] = isinstance(error, (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NotFound))
        answer["error"] = text(nvml, error)
    return answer, migs


def _recovery(nvml: Any, handle: Any) -> int | None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _migs(nvml: Any, handle: Any) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
