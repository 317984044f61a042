"""The children that watch GPUs, and what follows from their lines: health, and another look at the host."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuplugin.health import hung_file, kmsg, nvml_child
from gpuplugin.health.health import Health
from gpuplugin.health.nvml_lines import EVENTS, HUNG, NEVER, POLLS
from gpuplugin.processes.child import Child
from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuplugin.health.reason import Reason
    from gpushim.ground.model import Snapshot

MODES = (EVENTS, POLLS)
RETRY = 3.5  # seconds between starts while NVML cannot be used; a start costs 0.1 s of CPU
FIRST, LONGEST = 3.0, 60.0  # seconds between refreshes because of the same difference


class Watchers:
    """Both children.

    Args:
        path: of the file that keeps the reasons.
        start: starts a task, and sees to what it ends with.
        changed: is called when reasons may have changed.
        stale: is called when the host is not what its snapshot says.
        checks: which count.
    """

    def __init__(
        self,
        path: str,
        start: Callable[[Any], asyncio.Task[Any]],
        changed: Callable[[], None],
        stale: Callable[[], None],
        checks: xids.Choice,
    ) -> None:
        self._health = Health(path, checks)
        self._changed, self._stale = changed, stale
        self._snapshot: Snapshot | None = None
        self._driver: object = None  # that the children have opened
        self._sick: set[str] = set()  # GPUs that had a problem in the last snapshot
        self._difference, self._due, self._pause = "", 0.0, FIRST  # time.monotonic()
        self._tried = 0.0
        self._watched: dict[str, Any] = {}  # the last such line
        self._xids: dict[str, int] = {}  # the last of each GPU
        self._children = {mode: self._child(mode, start) for mode in MODES}

    def _child(self, mode: str, start: Callable[[Any], asyncio.Task[Any]]) -> Child:
        def words(suspects: Collection[str]) -> list[str]:
            assert self._snapshot is not None
            heard = self._health.listened.until(system.clock()) if mode == EVENTS else None
            proc = ensure.proc_dir(self._snapshot["inputs"]["root"])
            return nvml_child.command(mode, self._snapshot, proc, suspects, heard)

        def mark_unwatched(clause: str, gpu: str) -> None:
            if mode == EVENTS:
                self._watched = {}
            self._notify(
                self._health.mark_unwatched(mode, HUNG if gpu else clause, system.clock(), [gpu] if gpu else None)
            )
            if gpu and mode == POLLS and hung_file.add(gpu):
                self._stale()

        heard, silence = partial(self._take_line, mode), nvml_child.SILENCE[mode]
        return Child(mode, words, heard, mark_unwatched, silence, start, gather=mode == POLLS)

    def choose(self, checks: xids.Choice) -> None:
        """Go by other checks from now on."""
        self._health.choose(checks)

    def watch(self, snapshot: Snapshot) -> None:
        """Watch the GPUs of a snapshot; elsewhere than on a plain host, and without a driver, there are none to
        watch.
        """
        self._snapshot, driver = snapshot, nvml_child.opens(snapshot)
        if not driver:
            return
        sick = {gpu["uuid"] for gpu in snapshot["gpus"] if gpu["problem"]}
        # An NVML that was opened while a GPU was lost does not find it when it is back.
        renewed = self._driver not in (None, driver) or not self._sick <= sick
        for mode, child in self._children.items():
            if self._driver is None:  # nothing is known from before, or nobody has listened since
                self._health.mark_unwatched(mode, "nobody has asked it yet", system.clock())
            if renewed:
                child.again()
            child.begin()
        self._driver, self._sick = driver, sick

    async def catch_up(self, snapshot: Snapshot) -> None:
        """Read the kernel's log for the time in which nobody listened, before anything is given out.

        The children read it too, but tell it some time after their start, in which nobody has listened either.
        """
        if self._driver or not nvml_child.opens(snapshot):
            return
        heard = self._health.listened.until(system.clock())
        gpus = [(gpu["pci"], gpu["uuid"], heard.get(gpu["uuid"], NEVER)) for gpu in snapshot["gpus"] if gpu["uuid"]]
        log = kmsg.Log(kmsg.path(ensure.proc_dir(snapshot["inputs"]["root"])))
        try:
            for line in await asyncio.to_thread(lambda: [*kmsg.missed(log, gpus)]):
                self._take_line(EVENTS, line)
        finally:
            log.close()

    def _is_failing(self) -> bool:
        snapshot = self._snapshot
        return snapshot is not None and (snapshot["error"] is not None or snapshot["source"] != "nvml")

    def hurry(self) -> None:
        """Start a failed child again soon: NVML may be back, and only who asks it finds out."""
        moment, child = time.monotonic(), self._children[POLLS]
        if self._is_failing() and not child.pid and moment - self._tried > RETRY:
            self._tried = moment
            child.again()

    async def stop(self, patient: bool = False) -> None:
        """End both, as `Child.stop`; `watch` begins again."""
        self._driver, self._watched = None, {}
        self._health.quiet(system.clock())
        await asyncio.gather(*(child.stop() for child in self._children.values()))
        self._health.save(at_once=True)  # before a wait that may have no end
        if patient:
            await asyncio.gather(*(child.stop(patient) for child in self._children.values()))

    def problems(self, snapshot: Snapshot) -> dict[str, list[Reason]]:
        """Return the reasons for which GPUs and MIG instances are not given out, by UUID."""
        problems = self._health.problems(snapshot, system.clock())
        self._health.save()
        return problems

    @property
    def watched(self) -> dict[str, Any]:
        """Return which GPUs are watched for events, and why others are not."""
        defaults: dict[str, Any] = {"watching": [], "unwatched": {}, "unsupported": []}
        return {key: self._watched.get(key, default) for key, default in defaults.items()}

    @property
    def xids(self) -> dict[str, int]:
        """Return the last XID since the start, by UUID; 0 for none of a GPU that is watched."""
        return {**dict.fromkeys(self.watched["watching"], 0), **self._xids}

    def _notify(self, changed: bool) -> None:
        if changed:
            self._changed()

    def _take_line(self, mode: str, line: dict[str, Any]) -> None:
        self._notify(self._health.heard(line, system.clock()))
        if "watching" in line:
            self._watched = line
        if isinstance(line.get("xid"), int) and self._snapshot is not None:
            for gpu in self._snapshot["gpus"]:
                if line.get("gpu") in (None, gpu["uuid"]):
                    self._xids[gpu["uuid"]] = line["xid"]
        if mode == POLLS and "poll" in line:
            hung_file.remove(line["poll"] if isinstance(line["poll"], dict) else ())
            self._compare(line)

    def _compare(self, line: dict[str, Any]) -> None:
        """Report a stale snapshot where a poll contradicts it; the same difference not all the time."""
        difference, moment = self._describe_difference(line), time.monotonic()
        if not difference:
            self._difference = ""
        elif difference != self._difference or moment >= self._due:
            self._pause = FIRST if difference != self._difference else min(2 * self._pause, LONGEST)
            self._difference, self._due = difference, moment + self._pause
            self._stale()

    def _describe_difference(self, line: dict[str, Any]) -> str:
        if self._snapshot is None:
            return ""
        try:
            differences = _find_differences(self._snapshot, line)
        except (TypeError, AttributeError, KeyError, ValueError):  # not what a child of ours says
            return ""
        return json.dumps(differences) if differences else ""


def _find_differences(snapshot: Snapshot, line: dict[str, Any]) -> list[Any]:
    if snapshot["error"] or snapshot["source"] != "nvml":
        return ["NVML"]
    poll, migs = line["poll"], line["migs"]
    known_gpus = {gpu["uuid"] or gpu["pci"]: gpu for gpu in snapshot["gpus"]}
    differences: list[Any] = sorted({*line["gpus"]}.symmetric_difference(known_gpus))
    answers = {
        uuid: answer
        for uuid, answer in poll.items()
        if uuid in known_gpus and not (answer["lost"] or answer["error"])
    }
    differences += [[uuid, "answers"] for uuid in answers if known_gpus[uuid]["problem"]]
    differences += [
        [uuid, answer["mig"]]
        for uuid, answer in answers.items()
        if answer["mig"] not in (None, known_gpus[uuid]["mig"])
    ]
    if migs is not None:
        differences += sorted({mig["uuid"] for mig in snapshot["mig"]}.symmetric_difference(migs))
    return differences
