"""Memory limits of shares that the kernel keeps, where it can: set soon after a container starts.

Asked for when kubelet says who has what, never while a container waits for an answer; set by a child
(nvml_limits.py), which finds whose cgroup is meant. Out of scope: what a share's limit is (sharing.py).
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.allocation.kubelet_view import ASK
from gpuplugin.health import nvml_child
from gpuplugin.kubelet import podresources
from gpuplugin.limits import nvml_limits
from gpuplugin.limits.nvml_limits import Limit
from gpuplugin.processes.child import Child
from gpuplugin.snapshot import node_snapshot
from gpushim.ground.errors import visible
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.allocation.registry import Registry
    from gpuplugin.kubelet.podresources import Holder
    from gpuplugin.settings.resources import Device
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

    Key = tuple[str, str]  # resource and id

TICK = 1.0  # seconds between looks for a container that starts
STARTING = 60.0  # seconds after an Allocate in which its container is looked for
SILENCE = 10.0  # seconds after which the child hangs
TEXT_LIMIT = 300  # characters of what it says
POD = "the kernel gets no memory limits: a pod cannot see which cgroup is whose"
WITHOUT = "limits of shares are kept by MPS for each process, or not at all"


class KernelLimits:
    """All of them.

    Args:
        registry: what kubelet was told.
        kubelet_dir: returns kubelet's directory, which settings may change.
        start: starts a task, and sees to what it ends with.
    """

    def __init__(
        self, registry: Registry, kubelet_dir: Callable[[], str], start: Callable[[Any], asyncio.Task[Any]]
    ) -> None:
        self._registry, self._kubelet_dir, self._start = registry, kubelet_dir, start
        lost = "the kernel gets no memory limits"
        self._child = Child("limits", self._words, self._heard, self._stopped, SILENCE, start, lost, fed=True)
        self._snapshot: Snapshot | None = None
        self._driver: object = None  # that the child has opened
        self._can: bool | None = None  # None while it has not said
        self._able: asyncio.Event | None = None  # in `keep`, for Python 3.9 ties it to the loop of that moment
        self._why = self._logged = ""
        self._sent: set[Limit] = set()  # not answered yet
        self._answers: dict[Limit, str] = {}  # its error in the last answer, "" for none
        self._hung = ""  # UUID of a GPU
        self._due = 0.0  # time.monotonic()
        self._asked = 0.0  # time.time()
        self._seen: set[Key] = set()  # what had a container then that is known

    def look(self, snapshot: Snapshot, settings: Settings) -> None:
        """Have the child run while there are limits to set, with the driver that there is."""
        self._snapshot = snapshot
        limited = any(one.mps or one.memory for one in settings.sharing)
        if limited and os.environ.get(node_snapshot.POD):
            self._cannot(POD)
            return
        if self._why == POD:
            self._forget("")
        driver = nvml_child.opens(snapshot) if limited else None
        if driver == self._driver:
            return
        self._driver = driver
        self._forget("")
        if driver is None:
            self._start(self._child.stop())
        else:
            self._child.again()
            self._child.begin()

    async def keep(self) -> None:
        """Set limits as long as the plugin runs: of containers that start soon, of all others now and then."""
        self._able = asyncio.Event()
        while True:
            self._able.clear()
            if not self._can:
                await self._able.wait()
            await asyncio.sleep(TICK)
            if self._can and (time.monotonic() >= self._due or self._starting()):
                self._due = time.monotonic() + ASK
                await self._ask()

    async def stop(self, patient: bool = False) -> None:
        """End the child, as `Child.stop`; `look` begins again."""
        self._driver = None
        self._forget("")
        await self._child.stop(patient)

    @property
    def notes(self) -> list[str]:
        """Why the kernel keeps no limit, where it is to."""
        return [f"{self._why}; {WITHOUT}"] if self._why else []

    @property
    def state(self) -> dict[str, Any]:
        """Whether the kernel keeps limits (null: nothing is to be limited, or it is not known), and of which."""
        rows = [{**vars(one), "error": error} for one, error in self._answers.items()]
        return {"kernel": self._can, "why": self._why, "set": rows}

    def _words(self, suspects: object) -> list[str]:
        assert self._snapshot is not None
        return nvml_limits.command(self._snapshot)

    def _forget(self, why: str) -> None:
        """Take note that nothing is known of the child, or that there is none."""
        self._can, self._why, self._due = None, why, 0.0
        self._sent, self._answers = set(), {}

    def _stopped(self, why: str, gpu: str) -> None:
        self._forget(f"the kernel gets no memory limits: {why}")
        self._hung = gpu or self._hung

    def _heard(self, line: dict[str, Any]) -> None:
        if "can" in line:
            self._forget(visible(str(line.get("why"))[:TEXT_LIMIT]))
            self._can = line["can"] is True
            if self._able:
                self._able.set()
            if not self._can:
                self._cannot(self._why)
                self._start(self._child.stop())
            return
        for limit in [one for one in self._sent if all(line.get(key) == value for key, value in vars(one).items())]:
            self._sent.discard(limit)
            error = visible(str(line.get("error"))[:TEXT_LIMIT])
            if error and error != self._answers.get(limit):
                logger.warning("the kernel does not limit %s for %s: %s", limit.gpu, limit.cgroup, error)
            self._answers[limit] = error

    def _cannot(self, why: str) -> None:
        """Take note that the kernel keeps no limit here, and say it once."""
        self._why, self._can = why, False
        if why != self._logged:
            logger.warning("%s", self.notes[0])
        self._logged = why

    def _starting(self) -> bool:
        """Say whether something with a limit was given out just now whose container is not known yet."""
        late = time.time() - STARTING
        return any(
            at > late
            and (at > self._asked or (name, one) not in self._seen)
            and _limited(each.resource.devices.get(one))
            for name, each in self._registry.served.items()
            for at, ids in [*each.resource.allocated]
            for one in ids
        )

    async def _ask(self) -> None:
        """Ask kubelet and the host who has what, and have limits set that are not."""
        served, snapshot, asked = self._registry.served, self._snapshot, time.time()
        rows = await podresources.holders(self._kubelet_dir(), [*served])
        if rows is None or snapshot is None:
            return
        keys = [(row["resource"], one) for row in rows for one in row["devices"] if row["resource"] in served]
        there = {key: served[key[0]].resource.devices.get(key[1]) for key in keys}
        devices = {key: one for key, one in there.items() if one}
        found: dict[str, list[Limit]] = {}
        if any(map(_limited, devices.values())):
            found = await asyncio.to_thread(_find, snapshot, rows, devices)
        known = [row for row in rows if nvml_limits.container(row) in found]
        self._asked, self._seen = asked, {(row["resource"], one) for row in known for one in row["devices"]}
        if self._can:
            self._tell({one for row in found.values() for one in row})

    def _tell(self, expected: set[Limit]) -> None:
        """Tell the child what it was not told, or failed; of a GPU that hung last."""
        self._answers = {one: error for one, error in self._answers.items() if one in expected}
        left = {one for one in expected - self._sent if self._answers.get(one) != ""}
        self._sent |= {
            one for one in sorted(left, key=lambda one: one.gpu == self._hung) if self._child.say(vars(one))
        }


def _limited(device: Device | None) -> bool:
    return bool(device and device.share and device.share.memory)


def _find(snapshot: Snapshot, rows: Sequence[Holder], devices: Mapping[Key, Device]) -> dict[str, list[Limit]]:
    """Find the limits; in a thread, for it reads the states of all of root's containers; never those of users."""
    from gpushim.containers import holders  # not before there are limits: it would be memory of every plugin

    places = [path for pattern, _ in holders.STATES for path in glob.glob(pattern)]
    return nvml_limits.expected(rows, devices, holders.holders(snapshot, places)[0], nvml_limits.cgroup_of)
