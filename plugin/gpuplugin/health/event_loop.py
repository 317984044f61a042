"""The child that sleeps in the driver until there is an event: what nvml_child.py calls "events".

Events are merged, never dropped: the first of its kind is told at once, and what comes again every PACE seconds,
however many there were. So the number of lines is bounded by GPUs and causes, and a pod whose program makes XIDs
without end hides nobody else's. A GPU that was not listened to, be it for a moment, is asked before it is told as
watched: what NVML knows of it, and what the kernel's log has from since then.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import TYPE_CHECKING, Any, Optional

from gpuplugin.health import kmsg, nvml_lines
from gpuplugin.processes import moments
from gpushim.ground import system

if TYPE_CHECKING:
    from gpuplugin.health.nvml_lines import Gpu

    # XID, None for an ECC error; UUID; GPU instance; compute instance
    Key = tuple[Optional[int], Optional[str], Optional[int], Optional[int]]

XID, DOUBLE_BIT_ECC = 0x8, 0x2  # nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError
NO_INSTANCE = 0xFFFFFFFF
PACE = 1.0  # seconds between two lines about the same
MOST_SENT = 100  # lines within PACE, most; the parent kills a child for 2000 in a second (child.LINES)
KINDS = 128  # of a GPU that wait to be told; those beyond lose their MIG instance, and so concern the whole GPU
ALIVE = 1.0  # seconds between two words that it lives, while events come without end


class Merged:
    """Events that are to be told, each kind once."""

    def __init__(self) -> None:
        self._waiting: dict[Key, None] = {}  # the oldest first
        self._sent: dict[Key, float] = {}  # time.monotonic(), not longer ago than PACE

    def add(self, key: Key) -> None:
        if key not in self._waiting and sum(waiting[1] == key[1] for waiting in self._waiting) >= KINDS:
            key = (*key[:2], None, None)
        self._waiting[key] = None

    def due(self, moment: float, everything: bool = False) -> list[Key]:
        """Remove and return the events to be told now, or all."""
        self._sent = {key: sent for key, sent in self._sent.items() if moment - sent < PACE}
        room = len(self._waiting) if everything else MOST_SENT - len(self._sent)
        keys = [key for key in self._waiting if everything or key not in self._sent][: max(0, room)]
        for key in keys:
            del self._waiting[key]
            self._sent[key] = moment
        return keys

    def wait(self, moment: float) -> float:
        """Return the seconds after which something may be due."""
        if not self._waiting:
            return moments.until()
        return max(0.0, min((sent + PACE - moment for sent in self._sent.values()), default=0.0))


class Events:
    """An event set with all GPUs that can be in it."""

    def __init__(self, nvml: Any, gpus: list[Gpu], log: kmsg.Log) -> None:
        self._nvml, self._gpus, self._log = nvml, gpus, log
        self._uuids: dict[int | None, str] = {}  # by handle
        self._unwatched: dict[str, str] = {}
        self._unsupported: set[str] = set()
        self._asked: dict[str, dict[str, Any]] = {}  # since the last line
        self._last_line: object = None
        self._set: Any = None
        self._merged = Merged()

    def watch(self) -> None:
        """Print events, until it is time to open NVML again for those that cannot be watched; NVMLError otherwise."""
        end, last_sign = time.monotonic() + nvml_lines.AGAIN[nvml_lines.EVENTS], 0.0
        try:
            self._register()
            while not self._unwatched or time.monotonic() < end:
                if time.monotonic() - last_sign >= ALIVE:
                    nvml_lines.tell(alive=1)
                    last_sign = time.monotonic()
                last_sign = last_sign if self._wait() else 0.0
                self._print(self._merged.due(time.monotonic()))
        finally:
            self._leave()
            self._print(self._merged.due(time.monotonic(), everything=True))

    def _wait(self) -> bool:
        """Wait for an event, and merge it; return whether there was one."""
        nvml, seconds = self._nvml, self._merged.wait(time.monotonic())
        try:
            if self._set is None:
                time.sleep(seconds)
            else:
                self._merge(nvml.nvmlEventSetWait_v2(self._set, max(1, math.ceil(1000 * seconds))))
                return True
        except nvml.NVMLError_Timeout:
            self._register_failed()
        except nvml.NVMLError_GpuIsLost:
            self._renew_set()
        return False

    def _register(self) -> None:
        """Make a set, and put all GPUs into it but those that hung."""
        self._unwatched = {gpu.uuid: nvml_lines.HUNG for gpu in self._gpus if gpu.hung}
        self._uuids.clear()
        try:
            self._set = self._nvml.nvmlEventSetCreate()
        except nvml_lines.unsupported(self._nvml):
            self._unsupported = {gpu.uuid for gpu in self._gpus}
        for gpu in self._gpus if self._set is not None else ():
            self._add(gpu)
        self._report()

    def _register_failed(self) -> None:
        for gpu in self._gpus:
            if gpu.uuid in self._unwatched:
                self._add(gpu)
        self._report()

    def _renew_set(self) -> None:
        """Leave lost GPUs out, for NVML ends every wait while one is in the set."""
        before = dict(self._unwatched)
        self._leave()
        self._nvml.nvmlEventSetFree(self._set)
        self._register()
        if self._unwatched == before:  # it does not say which
            time.sleep(1)

    def _leave(self) -> None:
        for gpu in self._gpus:
            if gpu.uuid in self._uuids.values():
                gpu.since = gpu.since._replace(heard=system.clock() - nvml_lines.MOMENT)

    def _add(self, gpu: Gpu) -> None:
        nvml = self._nvml
        if gpu.hung:
            return
        try:
            handle = gpu.handle(nvml)
            types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & (XID | DOUBLE_BIT_ECC)
            nvml.nvmlDeviceRegisterEvents(handle, types, self._set)
        except nvml_lines.unsupported(nvml):
            self._unsupported.add(gpu.uuid)
        except nvml.NVMLError as error:
            self._unwatched[gpu.uuid] = nvml_lines.text(nvml, error)
            return
        else:
            self._uuids[_address(handle)] = gpu.uuid
        self._unwatched.pop(gpu.uuid, None)
        answer = self._asked[gpu.uuid] = nvml_lines.ask(nvml, gpu)[0]
        if answer["error"]:
            self._unwatched[gpu.uuid] = answer["error"]

    def _report(self) -> None:
        line = {
            "watching": sorted({*self._uuids.values()} - self._unwatched.keys()),
            "unwatched": dict(self._unwatched),
            "unsupported": sorted(self._unsupported),
        }
        answers, self._asked = self._asked, {}
        if answers:
            self._print_missed(answers)
        if answers or line != self._last_line:
            self._last_line = line
            nvml_lines.tell(**line, **({"asked": answers} if answers else {}))

    def _print_missed(self, answers: dict[str, Any]) -> None:
        gpus = ((gpu.pci, gpu.uuid, gpu.since) for gpu in self._gpus if gpu.uuid in answers)
        for line in kmsg.missed(self._log, gpus):
            nvml_lines.tell(**line)

    def _merge(self, event: Any) -> None:
        gi, ci = (
            None if instance == NO_INSTANCE else instance
            for instance in (event.gpuInstanceId, event.computeInstanceId)
        )
        xid = event.eventData if event.eventType & XID else None
        self._merged.add((xid, self._uuids.get(_address(event.device)), gi, ci))

    def _print(self, keys: list[Key]) -> None:
        for xid, gpu, gi, ci in keys:
            kind = {"ecc": True} if xid is None else {"xid": xid}
            nvml_lines.tell(**kind, gpu=gpu, gi=gi, ci=ci)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
