"""Which GPUs and MIG instances are not to be handed out now, why, and since when.

Takes the lines of the children that watch (nvml_child.py), and keeps what follows in one file, so that a restart
heals nothing. A reason ends when what caused it is gone: each cause says how (causes.Cause.ends). Another instance of
the plugin, as in a rolling update, writes the same file: an event that only one of them has heard counts for both.
Budget: `heard` and `problems` look through the reasons of GPUs; a small file is written at most four times a second.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin.health import causes, reason
from gpuplugin.health.causes import Cause, EndedEvents, GpuRecord
from gpuplugin.health.reason import Reason
from gpuplugin.processes.child import STARTING
from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths import lock, trust

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Snapshot

GRACE = STARTING + 5.0  # seconds that no GPU may be watched; a child that starts has its time, with pauses between
SAVES = 0.25  # seconds between two writes of the file
LOCK, LOCKED = "health.lock", 0.5  # beside it; seconds that another instance may take


class Health:
    """The reasons of all GPUs. All times are seconds since boot, suspends included (system.clock).

    Use: `problems` after each new snapshot, after each call that returns True, and every few seconds.

    Args:
        path: <state directory>/device-plugin/health.json.
        choice: which checks count; None: as usual.
        boot: the host's boot id; None: ask the kernel.

    Attributes:
        listened: until when each GPU was.
    """

    def __init__(self, path: str, choice: xids.Choice | None = None, boot: str | None = None) -> None:
        self.path = path
        self._file = trust.identity(path)  # as it was read or written last
        self._state = causes.load(path, (system.boot() or "") if boot is None else boot)
        self._here: set[str] = set()  # UUIDs of the last snapshot
        self.listened, self._over = causes.Listening(self._state), EndedEvents()
        self._unsaved = self._warned = self._changed = False
        self._saved = 0.0
        self.choose(choice or xids.Choice())  # the settings may have changed

    def choose(self, choice: xids.Choice) -> None:
        """Go by other checks from now on; what counts no more is over."""
        self._choice = choice
        for gpu in self._state.gpus.values():
            for name in [name for name, cause in gpu.causes.items() if not self._counts(cause)]:
                self._end(gpu, name)
        if not choice.checks:
            self._state.unwatched.clear()

    def heard(self, line: dict[str, Any], moment: float) -> bool:
        """Apply a line of a child, or pass over a malformed one; return whether `problems` may have changed."""
        self._changed = False
        if "xid" in line or "ecc" in line:
            self._apply_event(line, moment)
        elif isinstance(line.get("poll"), dict):
            self._apply_poll(line["poll"], line.get("gpus"), moment)
        elif "watching" in line:
            self._apply_watched(line, moment)
        self.save()
        return self._changed

    def mark_unwatched(self, child: str, clause: str, moment: float, gpus: Iterable[str] | None = None) -> bool:
        """Note that a child does not watch; return whether `problems` may have changed.

        Args:
            child: "events" or "polls".
            clause: the reason.
            gpus: whose calls fail or hang; at once a reason. None: the child does not run; a reason after GRACE.
        """
        self._changed = False
        if child == "events":
            self.quiet(moment)
        if self._choice.checks:
            if gpus is None and child not in self._state.unwatched:
                self._state.unwatched[child] = Cause("unwatched", moment, moment, why=quote(clause))
                self._touch()
            for uuid in gpus or ():
                gpu = self._state.find(uuid, self._here)
                if gpu:
                    self._add(gpu, f"unwatched {child}", Cause("unwatched", moment, moment, why=quote(clause)))
        self.save()
        return self._changed

    def quiet(self, moment: float) -> None:
        """Note that nobody listens to events any more."""
        self.listened.begin((), moment)
        self._unsaved = True

    def problems(self, snapshot: Snapshot, moment: float) -> dict[str, list[Reason]]:
        """Return the reasons, the oldest first, by UUID of the GPU; a MIG instance has those of its GPU, too.

        A snapshot may end reasons of GPUs whose driver was loaded again.
        """
        if not snapshot["error"]:
            self._here, ended, changed = self._state.adopt(snapshot, moment)
            self._changed, self._unsaved = self._changed or ended, self._unsaved or changed
        self._merge_file()
        problems: dict[str, list[Reason]] = {}
        for gpu in snapshot["gpus"]:
            if gpu["uuid"] and (reasons := self._reasons(gpu["uuid"], moment)):
                problems[gpu["uuid"]] = [item for item in reasons if item.gi is None]
                for mig in snapshot["mig"]:
                    if mig["gpu"] == gpu["index"]:
                        problems[mig["uuid"]] = [item for item in reasons if item.concerns(mig)]
        return {uuid: reasons for uuid, reasons in problems.items() if reasons}

    def save(self, at_once: bool = False) -> None:
        """Write the file if it is out of date; call it now and then, and with `at_once` at the end."""
        moment = time.monotonic()
        if not self._unsaved or (not at_once and moment - self._saved < SAVES):
            return
        lock_path = f"{os.path.dirname(self.path)}/{LOCK}"
        if not at_once and lock.is_held(lock_path):  # by another instance, which writes it just now
            return
        self._saved = moment
        try:
            with lock.held(lock_path, LOCKED):  # else what it has heard, and tells here alone, could be written over
                self._merge_file()
                self.listened.note(system.clock())
                causes.save(self.path, self._state)
                self._file = trust.identity(self.path)
            self._unsaved = self._warned = False
        except (OSError, GpushimError) as error:
            if not self._warned:
                logger.warning(
                    "%s cannot be written, so a restart would forget why devices are unhealthy: %s", self.path, error
                )
            self._warned = True

    def _merge_file(self) -> None:
        """Add the events of GPUs here that another instance has written since; polls, each makes its own."""
        identity = trust.identity(self.path)
        if identity == self._file or not self._here:
            return
        self._file = identity
        for uuid, stored in causes.load(self.path, self._state.boot).gpus.items():
            gpu = self._state.find(uuid, self._here) if uuid in self._here else None
            if not gpu or gpu.binding != stored.binding:
                continue
            for name, cause in stored.causes.items():
                is_new = name not in gpu.causes and not self._over.has(uuid, name, cause)
                if cause.kind in causes.EVENTS and is_new and self._counts(cause):
                    self._add(gpu, name, cause)

    def _apply_event(self, line: dict[str, Any], moment: float) -> None:
        """Add an XID, or an ECC error, of a GPU; of all of them if it is not known which."""
        gpu, gi, ci = line.get("gpu"), _number(line.get("gi")), _number(line.get("ci"))
        at = line.get("at", moment)  # of an event that was heard of late
        moment = max(0.0, min(moment, at)) if isinstance(at, (int, float)) else moment
        name, cause = "ecc", Cause("ecc", moment, moment, ends=xids.ACTION)
        if "xid" in line:
            xid = _number(line["xid"])
            if not xid:
                return
            ends = xids.verdict(xid).ends
            if ends != xids.TIME or gi is None:  # a reset is of the whole GPU
                gi = ci = None
            name, cause = f"xid {xid} {gi} {ci}", Cause("xid", moment, moment, xid, gi, ci, ends)
        for uuid in [gpu] if gpu else sorted(self._here):
            state = self._state.find(uuid, self._here) if self._counts(cause) else None
            if state:
                self._add(state, name, replace(cause))

    def _apply_poll(self, poll: dict[str, Any], listed: Any, moment: float) -> None:
        for uuid in sorted({*poll, *self._here}):
            answer = poll.get(uuid)
            is_gone = isinstance(listed, list) and uuid not in listed
            gpu = self._state.find(uuid, self._here) if isinstance(answer, dict) or is_gone else None
            if gpu:
                answer = answer if isinstance(answer, dict) else {}
                if uuid in self.listened.uuids and causes.count(gpu, answer)[0]:  # else `_apply_watched` compares
                    self._unsaved = True
                self._apply_test(gpu, answer, is_gone, moment)
        healthy = [uuid for uuid, answer in poll.items() if isinstance(answer, dict) and not answer.get("error")]
        self._end_unwatched("polls", healthy)

    def _apply_test(self, gpu: GpuRecord, answer: dict[str, Any], is_gone: bool, moment: float) -> None:
        """Compare a poll's answer with the causes of a GPU; only one that it answers well ends a reason."""
        error, rows, action = answer.get("error"), answer.get("rows"), _number(answer.get("recovery"))
        lost = answer.get("lost") is True  # which has an error, too
        failures = {"lost": lost, "gone": is_gone, "error": bool(error) and not lost}
        for kind, failed in failures.items():
            if failed or not any(failures.values()):
                self._set(gpu, kind, failed, Cause(kind, moment, moment, why=quote(str(error or ""))))
        if isinstance(rows, list) and len(rows) == 2:
            self._set(gpu, "rows", bool(rows[1]), Cause("rows", moment, moment))
        fabric = answer.get("fabric")
        if isinstance(fabric, str):
            self._set(gpu, "fabric", bool(fabric), Cause("fabric", moment, moment, why=quote(fabric)))
        needed = action is not None and action not in causes.FINE
        if action is not None:
            self._set(gpu, "recovery", needed, Cause("recovery", moment, moment, action))
        for name, cause in list(gpu.causes.items()):
            if needed and cause.ends and not cause.told:
                cause.told = self._unsaved = True
            if cause.ends and not any(failures.values()) and cause.over(action, moment):
                self._end(gpu, name)

    def _apply_watched(self, line: dict[str, Any], moment: float) -> None:
        """Note which GPUs are listened to; those that were not before have been asked since."""
        answers, unwatched, watching = line.get("asked"), line.get("unwatched"), line["watching"]
        unwatched = unwatched if isinstance(unwatched, dict) else {}
        for uuid, answer in answers.items() if isinstance(answers, dict) else ():
            gpu = self._state.find(uuid, self._here) if isinstance(answer, dict) else None
            if gpu:
                if causes.count(gpu, answer)[1]:
                    self._apply_event({"ecc": True, "gpu": uuid}, moment)
                self._apply_test(gpu, answer, False, moment)
        self.listened.begin(watching if isinstance(watching, list) else (), moment)
        self._unsaved = True
        self._end_unwatched("events", [uuid for uuid in self._state.gpus if uuid not in unwatched])
        for uuid, clause in unwatched.items() if self._choice.checks else ():
            gpu = self._state.find(uuid, self._here)
            if gpu:
                self._add(gpu, "unwatched events", Cause("unwatched", moment, moment, why=quote(str(clause))))

    def _end_unwatched(self, child: str, gpus: Iterable[str]) -> None:
        if self._state.unwatched.pop(child, None):
            self._touch()
        for uuid in gpus:
            if uuid in self._state.gpus:
                self._end(self._state.gpus[uuid], f"unwatched {child}")

    def _counts(self, cause: Cause) -> bool:
        return self._choice.counts(cause.number) if cause.kind == "xid" and cause.number else self._choice.checks

    def _add(self, gpu: GpuRecord, name: str, cause: Cause) -> None:
        if cause.kind == "xid" and name not in gpu.causes and len(gpu.causes) >= causes.CAUSES - causes.OTHERS:
            name, cause = causes.FURTHER, Cause("xid", cause.since, cause.last, ends=xids.AGAIN)
        old = gpu.causes.get(name)
        if old:
            if cause.last > old.last:
                old.last, old.told, self._unsaved = cause.last, False, True
        elif len(gpu.causes) < causes.CAUSES:
            gpu.causes[name] = cause
            self._touch()

    def _set(self, gpu: GpuRecord, kind: str, failed: bool, cause: Cause) -> None:
        old = gpu.causes.get(kind)
        if not failed or not self._choice.checks or (old and old.number != cause.number):
            self._end(gpu, kind)
            old = None
        if failed and self._choice.checks and not old:
            gpu.causes[kind] = cause
            self._touch()
        elif old and not old.counts:
            old.seen += 1
            self._touch()

    def _end(self, gpu: GpuRecord, name: str) -> None:
        cause = gpu.causes.pop(name, None)
        if cause:
            self._over.add(self._state, gpu, name, cause)
            self._touch()

    def _touch(self) -> None:
        self._changed = self._unsaved = True

    def _reasons(self, uuid: str, moment: float) -> list[Reason]:
        gpu = self._state.gpus.get(uuid, GpuRecord())
        counting = [cause for cause in gpu.causes.values() if cause.counts]
        counting += [cause for cause in self._state.unwatched.values() if moment - cause.since >= GRACE]
        return reason.reasons(counting)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= xids.HIGHEST else None
