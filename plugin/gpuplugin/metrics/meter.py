"""The figures of GPUs: asked for by a child, at the pace of those who want them, and remembered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_child
from gpuplugin.metrics import readings
from gpuplugin.processes import tasks
from gpuplugin.processes.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gpushim.ground.model import Snapshot

PACE = 1.0  # seconds between rounds, at least
IDLE = 300.0  # seconds after the last question in which the child still runs: it has the driver open
STALE = 60.0  # seconds for which figures are told
MIGS = 64  # of one GPU, most


@dataclass(frozen=True)
class Readings:
    """The figures of a GPU.

    Attributes:
        migs: those of its MIG instances, by UUID.
        up: whether it answered when it was last asked.
        age: seconds since it did; None: it never has.
    """

    own: dict[str, float] = field(default_factory=dict)
    migs: dict[str, dict[str, float]] = field(default_factory=dict)
    up: bool = False
    age: float | None = None


class Meter:
    """The figures of all GPUs.

    Args:
        start: starts a task, and sees to what it ends with.
        held: returns whether nothing may ask the driver.
    """

    def __init__(self, start: Callable[[Any], asyncio.Task[Any]], held: Callable[[], bool]) -> None:
        self._start, self._held = start, held
        lost = "metrics lack figures of GPUs"
        silence = readings.SILENCE
        self._child = Child("figures", self._words, self._take_line, self._on_stop, silence, start, lost, fed=True)
        self._snapshot: Snapshot | None = None
        self._driver: object = None  # of the snapshot, which the child opens
        self._runs = False
        self._number, self._asked, self._scraped = 0, 0.0, 0.0  # of the last round; time.monotonic()
        self._done = asyncio.Event()
        self._readings_by_uuid: dict[
            str, tuple[float, Readings]
        ] = {}  # by UUID, with the time.monotonic() of the answer
        self._failed: set[str] = set()  # UUIDs

    def look(self, snapshot: Snapshot | None) -> None:
        """Follow a snapshot; end the child when nobody has asked for long."""
        self._snapshot = snapshot
        uuids = {gpu["uuid"] for gpu in snapshot["gpus"]} if snapshot else set()
        self._readings_by_uuid = {uuid: reading for uuid, reading in self._readings_by_uuid.items() if uuid in uuids}
        former, self._driver = self._driver, nvml_child.opens(snapshot) if snapshot else None
        if self._runs and (not self._driver or time.monotonic() - self._scraped > IDLE):
            self._runs = False
            self._start(self._child.stop())
        elif self._runs and former != self._driver:
            self._child.again()

    async def ask(self, seconds: float) -> None:
        """Ask all GPUs, unless they just were; return after so many seconds, whatever they do."""
        time_now = self._scraped = time.monotonic()
        if not self._driver or self._held():
            return
        if not self._runs:
            self._runs, self._asked = True, time_now
            self._done.clear()
            self._child.begin()  # and it begins with a round
        elif time_now - self._asked >= PACE:
            self._number, self._asked = self._number + 1, time_now
            self._done.clear()
            self._child.say({"ask": self._number})
        await tasks.until(self._done, seconds)

    async def stop(self, patient: bool = False) -> None:
        """End the child, as `Child.stop`; the next question starts it."""
        self._runs = False
        self._done.set()
        await self._child.stop(patient)

    def readings(self) -> dict[str, Readings]:
        """Return the readings of each GPU of the snapshot, by UUID; without figures that are stale."""
        time_now, current = time.monotonic(), {}
        for gpu in self._snapshot["gpus"] if self._snapshot else ():
            at, reading = self._readings_by_uuid.get(gpu["uuid"], (None, Readings()))
            if at is not None:
                up = reading.up and at >= self._asked and gpu["uuid"] not in self._failed
                fresh = time_now - at <= STALE
                reading = Readings(reading.own if fresh else {}, reading.migs if fresh else {}, up, time_now - at)
            current[gpu["uuid"]] = reading
        return current

    def _words(self, suspects: Collection[str]) -> list[str]:
        assert self._snapshot is not None
        return readings.command(self._snapshot, suspects)

    def _on_stop(self, clause: str, gpu: str) -> None:
        self._done.set()

    def _take_line(self, line: dict[str, Any]) -> None:
        if line.get("done") in (0, self._number):  # 0: the first round with an NVML, which is unasked
            self._done.set()
        poll = line.get("poll")
        uuids = {gpu["uuid"] for gpu in self._snapshot["gpus"]} if self._snapshot else set()
        for uuid, answer in poll.items() if isinstance(poll, dict) else ():
            if uuid not in uuids or not isinstance(answer, dict):
                continue
            if answer.get("error"):
                self._failed.add(uuid)
                continue
            self._failed.discard(uuid)
            migs = answer.get("migs")
            instances = [*migs.items()][:MIGS] if isinstance(migs, dict) else []
            mig_numbers = {name: _only_numbers(values) for name, values in instances}
            self._readings_by_uuid[uuid] = (
                time.monotonic(),
                Readings(_only_numbers(answer.get("gpu")), mig_numbers, True),
            )


def _only_numbers(values: object) -> dict[str, float]:
    rows: Mapping[str, Any] = values if isinstance(values, dict) else {}
    return {key: rows[key] for key in readings.KEYS if _is_number(rows.get(key))}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 64
