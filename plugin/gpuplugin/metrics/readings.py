"""The program of the child that asks NVML for the figures of GPUs, when it is told to: what metrics show.

It begins with a round unasked. Then it reads lines of JSON, {"ask": number}, and speaks as nvml_child.py does, with
    {"poll": {UUID: {"gpu": {key: number}, "migs": {UUID: {key: number}}, "error": why}}}   a GPU each
    {"done": number}                                     the round that was asked for last is over
What a GPU does not support is absent. A MIG instance has what is its own alone.
Budget: 20 calls a GPU; at rest a line in ALIVE seconds.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child, nvml_lines
from gpuplugin.health.nvml_lines import Gpu, tell
from gpushim.inventory import nvml_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gpushim.ground.model import Snapshot

    Read = tuple[tuple[str, ...], Callable[[Any], Sequence[float]]]  # keys, and what returns their values

ALIVE = 2.0  # seconds between lines that say that it runs
SILENCE = 5.0  # seconds after which it hangs
AGAIN = 60.0  # seconds after which a GPU that hung is asked again
REOPEN = 15.0  # seconds after which NVML is opened again because of a GPU in trouble
MEMORY_TEMP = 82  # NVML_FI_DEV_MEMORY_TEMP
ECC = tuple((error, counter) for error in ("corrected", "uncorrected") for counter in ("volatile", "aggregate"))
MEMORY = ("memory_total", "memory_free", "memory_used")
THROTTLE = ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons")  # the latter in older drivers
ROWS = ("correctable_rows", "uncorrectable_rows", "row_failure")
PIDS = "/proc/self/ns/pid"
FIRST_NAMESPACE = 0xEFFFFFFC  # its inode number, PROC_PID_INIT_INO
KEYS = (
    *("sm_clock", "mem_clock", "temperature", "memory_temperature", "power", "energy", "pcie_replays"),
    *("gpu_utilization", "memory_utilization", "encoder_utilization", "decoder_utilization", "throttle"),
    *(*MEMORY, *ROWS, "processes", *(f"ecc {error} {counter}" for error, counter in ECC)),
)


def command(snapshot: Snapshot, suspects: Collection[str]) -> list[str]:
    """Return the command line of the child.

    Args:
        snapshot: what the host has; GPUs whose UUID it does not tell are not asked.
        suspects: UUIDs of GPUs whose calls hung.
    """
    gpus = [[gpu["uuid"], gpu["pci"], gpu["uuid"] in suspects] for gpu in snapshot["gpus"] if gpu["uuid"]]
    return nvml_program.program("gpuplugin.metrics.readings", nvml_program.library(snapshot), json.dumps(gpus))


def main(library: str, gpus: str) -> None:
    """Print figures until the parent is gone or NVML fails."""
    watched = [Gpu(uuid, pci, time.monotonic() + AGAIN if hung else 0.0) for uuid, pci, hung in json.loads(gpus)]
    nvml_child.run("figures", library, lambda nvml: _serve(nvml, watched))


def _serve(nvml: Any, gpus: list[Gpu]) -> None:
    """Make a round, and one more at each request, until NVML is to be reopened."""
    began, number = time.monotonic(), 0  # which is told of any first round
    while True:
        answers = [_print_readings(nvml, gpu) for gpu in gpus if not gpu.hung]
        tell(done=number)
        number = _wait_for_request()
        if not all(answers) and time.monotonic() - began > REOPEN:  # an NVML may know no better of one that was lost
            return


def _wait_for_request() -> int:
    """Return the number of the last request, once there is one: they may have piled up. EOFError without a parent."""
    while not select.select([0], [], [], ALIVE)[0]:
        tell(alive=1)
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            raise EOFError
        data += part
    return int(json.loads(data.splitlines()[-1])["ask"])


def _print_readings(nvml: Any, gpu: Gpu) -> bool:
    """Print the figures of a GPU and of its MIG instances; return whether it answers."""
    result: dict[str, Any] = {"gpu": {}, "migs": {}, "error": ""}
    try:
        handle = gpu.handle(nvml)
        result["gpu"] = _readings(nvml, handle, _reads(nvml))
        for mig in _migs(nvml, handle):
            result["migs"][nvml.nvmlDeviceGetUUID(mig)] = _readings(nvml, mig, _mig_reads(nvml))
    except nvml.NVMLError as error:
        result["error"] = str(error)[: nvml_lines.TEXT_LIMIT]
    tell(poll={gpu.uuid: result})
    return not result["error"]


def _readings(nvml: Any, handle: Any, reads: Sequence[Read]) -> dict[str, float]:
    """Read what there is; NVMLError if it is lost, or nothing can be read at all."""
    values: dict[str, float] = {}
    last_error: Exception | None = None
    for keys, read in reads:
        try:
            values.update(zip(keys, read(handle)))
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_Uninitialized):
            raise
        except (nvml.NVMLError, AttributeError) as error:  # it, or the driver, or nvidia-ml-py does not know that
            last_error = error
    if not values and isinstance(last_error, nvml.NVMLError):
        raise last_error
    return values


def _reads(nvml: Any) -> list[Read]:
    return [
        (("sm_clock",), lambda gpu: [nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)]),
        (("mem_clock",), lambda gpu: [nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)]),
        (("temperature",), lambda gpu: [_call_first(nvml, ("TemperatureV", "Temperature"), gpu, 0)]),
        (("memory_temperature",), lambda gpu: _field(nvml, gpu, MEMORY_TEMP)),
        (("power",), lambda gpu: [nvml.nvmlDeviceGetPowerUsage(gpu)]),
        (("energy",), lambda gpu: [nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)]),
        (("pcie_replays",), lambda gpu: [nvml.nvmlDeviceGetPcieReplayCounter(gpu)]),
        (("gpu_utilization", "memory_utilization"), lambda gpu: _utilization(nvml, gpu)),
        (("encoder_utilization",), lambda gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[:1]),
        (("decoder_utilization",), lambda gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[:1]),
        (("throttle",), lambda gpu: [_call_first(nvml, THROTTLE, gpu)]),
        (ROWS, lambda gpu: _rows(nvml, gpu)),
        *(_ecc(nvml, error, counter) for error, counter in ECC),
        *_mig_reads(nvml),
    ]  # fmt: skip


def _mig_reads(nvml: Any) -> list[Read]:
    reads: list[Read] = [(MEMORY, lambda handle: _memory(nvml, handle))]
    return [*reads, (("processes",), lambda handle: [_processes(nvml, handle)])] if can_see_processes() else reads


def can_see_processes() -> bool:
    """Return whether NVML lists processes here: in a container with its own process ids it tells of none."""
    try:
        return os.stat(PIDS).st_ino == FIRST_NAMESPACE
    except OSError:
        return False


def _call_first(nvml: Any, names: Sequence[str], *words: Any) -> Any:
    for name in names[:-1]:
        try:
            return getattr(nvml, f"nvmlDeviceGet{name}")(*words)
        except (nvml.NVMLError, AttributeError):
            continue
    return getattr(nvml, f"nvmlDeviceGet{names[-1]}")(*words)


def _field(nvml: Any, gpu: Any, number: int) -> list[int]:
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
    return [int(value.value.uiVal)] if value.nvmlReturn == nvml.NVML_SUCCESS else []


def _utilization(nvml: Any, gpu: Any) -> list[int]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return [rates.gpu, rates.memory]


def _rows(nvml: Any, gpu: Any) -> list[int]:
    correctable, uncorrectable, _, failure = nvml.nvmlDeviceGetRemappedRows(gpu)
    return [correctable, uncorrectable, failure]


def _ecc(nvml: Any, error: str, counter: str) -> Read:
    kind, since = int(error == "uncorrected"), int(counter == "aggregate")
    return (f"ecc {error} {counter}",), lambda gpu: [nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, since)]


def _memory(nvml: Any, handle: Any) -> list[int]:
    """Read total, free and used; without what the driver reserves, as DCGM has it, where the driver tells that."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, AttributeError):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return [info.total, info.free, info.used]


def _processes(nvml: Any, handle: Any) -> int:
    """Count processes; one that computes and draws at once is one."""
    rows = _call_first(nvml, ("ComputeRunningProcesses_v3", "ComputeRunningProcesses_v2"), handle)
    pids = {row.pid for row in rows}
    try:
        rows = _call_first(nvml, ("GraphicsRunningProcesses_v3", "GraphicsRunningProcesses_v2"), handle)
    except nvml.NVMLError:  # a GPU without graphics, or a MIG instance
        rows = []
    return len(pids | {row.pid for row in rows})


def _migs(nvml: Any, handle: Any) -> Iterator[Any]:
    try:
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return
    for index in range(count):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
