"""Which GPUs and MIG instances are not to be handed out now, why, and since when.

Takes the lines of the children that watch (nvml_child.py), and keeps what follows in one file, so that a restart
heals nothing. A reason ends when what caused it is gone: each cause says how (causes.Cause.ends). Another instance of
the plugin, as in a rolling update, writes the same file: an event that only one of them has heard counts for both.
Out of scope: watching itself, telling kubelet, and MIG modes that change, which call for another look at the host.
Budget: `heard` and `problems` look through the reasons of GPUs; a small file is written at most four times a second.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuplugin.health import causes, gaps, reason
from gpuplugin.health.causes import Cause, Known, Over
from gpuplugin.health.reason import Reason
from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.paths import lock, trust

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Snapshot

GRACE = 10.0  # seconds that no GPU may be watched, as while a child starts again
SAVES = 0.25  # seconds between two writes of the file
LOCK, LOCKED = "health.lock", 0.5  # beside it; seconds that another instance may take


class Health:
    """The reasons of all GPUs. All times are seconds since boot, suspends included (system.clock).

    Use: `problems` after each new snapshot, after each call that returns True, and every few seconds.

    Attributes:
        path: of the file.
        listened: until when each GPU was.
    """

    def __init__(self, path: str, choice: xids.Choice | None = None, boot: str | None = None) -> None:
        """Begin with what the file has.

        Args:
            path: <state directory>/device-plugin/health.json.
            choice: which checks count; None: as usual.
            boot: the host's boot id; None: ask the kernel.
        """
        self.path = path
        self._file = trust.identity(path)  # as it was read or written last
        self._state = causes.load(path, (system.boot() or "") if boot is None else boot)
        self._here: set[str] = set()  # UUIDs of the last snapshot
        self.listened, self._over = gaps.Listened(self._state), Over()
        self._unsaved = self._warned = self._changed = False
        self._saved = 0.0
        self.choose(choice or xids.Choice())  # the settings may have changed

    def choose(self, choice: xids.Choice) -> None:
        """Go by other checks from now on; what counts no more is over."""
        self._choice = choice
        for known in self._state.gpus.values():
            for name in [name for name, cause in known.causes.items() if not self._counts(cause)]:
                self._end(known, name)
        if not choice.checks:
            self._state.unwatched.clear()

    def heard(self, line: dict[str, Any], now: float) -> bool:
        """Take a line of a child; what is malformed is passed over.

        Returns:
            whether `problems` may have changed.
        """
        self._changed = False
        if "xid" in line or "ecc" in line:
            self._event(line, now)
        elif isinstance(line.get("poll"), dict):
            self._polled(line["poll"], line.get("gpus"), now)
        elif "watching" in line:
            self._watched(line, now)
        self.save()
        return self._changed

    def mark_unwatched(self, child: str, why: str, now: float, gpus: Iterable[str] | None = None) -> bool:
        """Say that a child does not watch.

        Args:
            child: "events" or "polls".
            why: a clause.
            now: the time.
            gpus: whose calls fail or hang; at once a reason. None: the child does not run; a reason after GRACE.

        Returns:
            whether `problems` may have changed.
        """
        self._changed = False
        if child == "events":
            self.quiet(now)
        if self._choice.checks:
            if gpus is None and child not in self._state.unwatched:
                self._state.unwatched[child] = Cause("unwatched", now, now, why=quote(why))
                self._touch()
            for uuid in gpus or ():
                known = self._state.find(uuid, self._here)
                if known:
                    self._add(known, f"unwatched {child}", Cause("unwatched", now, now, why=quote(why)))
        self.save()
        return self._changed

    def quiet(self, now: float) -> None:
        """Say that nobody listens to events any more."""
        self.listened.begin((), now)
        self._unsaved = True

    def problems(self, snapshot: Snapshot, now: float) -> dict[str, list[Reason]]:
        """List the reasons of each device that has any, the oldest first.

        Args:
            snapshot: what the host has; may end reasons of GPUs whose driver was loaded again.
            now: the time.

        Returns:
            by UUID of the GPU, and of each MIG instance, to which the reasons of its GPU apply, too.
        """
        if not snapshot["error"]:
            self._here, ended, changed = self._state.adopt(snapshot, now)
            self._changed, self._unsaved = self._changed or ended, self._unsaved or changed
        self._take_in()
        found: dict[str, list[Reason]] = {}
        for gpu in (one for one in snapshot["gpus"] if one["uuid"]):
            if reasons := self._reasons(gpu["uuid"], now):
                found[gpu["uuid"]] = [one for one in reasons if one.gi is None]
                for mig in (one for one in snapshot["mig"] if one["gpu"] == gpu["index"]):
                    found[mig["uuid"]] = [one for one in reasons if one.concerns(mig)]
        return {uuid: reasons for uuid, reasons in found.items() if reasons}

    def save(self, at_once: bool = False) -> None:
        """Write the file if it is out of date; call it now and then, and with `at_once` at the end."""
        now = time.monotonic()
        if not self._unsaved or (not at_once and now - self._saved < SAVES):
            return
        turn = f"{os.path.dirname(self.path)}/{LOCK}"
        if not at_once and lock.is_held(turn):  # by another instance, which writes it just now
            return
        self._saved = now
        try:
            with lock.held(turn, LOCKED):  # else what it has heard, and tells here alone, could be written over
                self._take_in()
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

    def _take_in(self) -> None:
        """Take in the events of GPUs here that another instance has written since; polls, each makes its own."""
        there = trust.identity(self.path)
        if there == self._file or not self._here:
            return
        self._file = there
        for uuid, other in causes.load(self.path, self._state.boot).gpus.items():
            known = self._state.find(uuid, self._here) if uuid in self._here else None
            if not known or known.binding != other.binding:
                continue
            for name, cause in other.causes.items():
                news = name not in known.causes and not self._over.has(uuid, name, cause)
                if cause.kind in causes.EVENTS and news and self._counts(cause):
                    self._add(known, name, cause)

    def _event(self, line: dict[str, Any], now: float) -> None:
        """Take an XID, or an ECC error, of a GPU; of all of them if it is not known which."""
        gpu, gi, ci = line.get("gpu"), _number(line.get("gi")), _number(line.get("ci"))
        at = line.get("at", now)
        now = max(0.0, min(now, at)) if isinstance(at, (int, float)) else now  # of one that was heard of late
        name, cause = "ecc", Cause("ecc", now, now, ends=xids.ACTION)
        if "xid" in line:
            xid = _number(line["xid"])
            if not xid:
                return
            ends = xids.verdict(xid).ends
            if ends != xids.TIME or gi is None:  # a reset is of the whole GPU
                gi = ci = None
            name, cause = f"xid {xid} {gi} {ci}", Cause("xid", now, now, xid, gi, ci, ends)
        for uuid in [gpu] if gpu else sorted(self._here):
            known = self._state.find(uuid, self._here) if self._counts(cause) else None
            if known:
                self._add(known, name, replace(cause))

    def _polled(self, poll: dict[str, Any], listed: Any, now: float) -> None:
        for uuid in sorted({*poll, *self._here}):
            found = poll.get(uuid)
            gone = isinstance(listed, list) and uuid not in listed
            known = self._state.find(uuid, self._here) if isinstance(found, dict) or gone else None
            if known:
                found = found if isinstance(found, dict) else {}
                if uuid in self.listened.now and gaps.count(known, found)[0]:  # else it is compared in `_watched`
                    self._unsaved = True
                self._tested(known, found, gone, now)
        well = [uuid for uuid, found in poll.items() if isinstance(found, dict) and not found.get("error")]
        self._watched_again("polls", well)

    def _tested(self, known: Known, found: dict[str, Any], gone: bool, now: float) -> None:
        """Compare what a poll found with what is known of a GPU; only one that it answers well ends a reason."""
        error, rows, action = found.get("error"), found.get("rows"), _number(found.get("recovery"))
        lost = found.get("lost") is True  # which has an error, too
        failures = {"lost": lost, "gone": gone, "error": bool(error) and not lost}
        for kind, failed in failures.items():
            if failed or not any(failures.values()):
                self._set(known, kind, failed, Cause(kind, now, now, why=quote(str(error or ""))))
        if isinstance(rows, list) and len(rows) == 2:
            self._set(known, "rows", bool(rows[1]), Cause("rows", now, now))
        fabric = found.get("fabric")
        if isinstance(fabric, str):
            self._set(known, "fabric", bool(fabric), Cause("fabric", now, now, why=quote(fabric)))
        needed = action is not None and action not in causes.FINE
        if action is not None:
            self._set(known, "recovery", needed, Cause("recovery", now, now, action))
        for name, cause in list(known.causes.items()):
            if needed and cause.ends and not cause.told:
                cause.told = self._unsaved = True
            if cause.ends and not any(failures.values()) and cause.over(action, now):
                self._end(known, name)

    def _watched(self, line: dict[str, Any], now: float) -> None:
        """Take who is listened to; those that were not before have been asked since."""
        asked, unwatched, watching = line.get("asked"), line.get("unwatched"), line["watching"]
        unwatched = unwatched if isinstance(unwatched, dict) else {}
        for uuid, found in asked.items() if isinstance(asked, dict) else ():
            known = self._state.find(uuid, self._here) if isinstance(found, dict) else None
            if known:
                if gaps.count(known, found)[1]:
                    self._event({"ecc": True, "gpu": uuid}, now)
                self._tested(known, found, False, now)
        self.listened.begin(watching if isinstance(watching, list) else (), now)
        self._unsaved = True
        self._watched_again("events", [uuid for uuid in self._state.gpus if uuid not in unwatched])
        for uuid, why in unwatched.items() if self._choice.checks else ():
            known = self._state.find(uuid, self._here)
            if known:
                self._add(known, "unwatched events", Cause("unwatched", now, now, why=quote(str(why))))

    def _watched_again(self, child: str, gpus: Iterable[str]) -> None:
        if self._state.unwatched.pop(child, None):
            self._touch()
        for uuid in gpus:
            if uuid in self._state.gpus:
                self._end(self._state.gpus[uuid], f"unwatched {child}")

    def _counts(self, cause: Cause) -> bool:
        return self._choice.counts(cause.number) if cause.kind == "xid" and cause.number else self._choice.checks

    def _add(self, known: Known, name: str, cause: Cause) -> None:
        """Keep a cause, or take note that it came again."""
        if cause.kind == "xid" and name not in known.causes and len(known.causes) >= causes.CAUSES - causes.OTHERS:
            name, cause = causes.FURTHER, Cause("xid", cause.since, cause.last, ends=xids.AGAIN)
        old = known.causes.get(name)
        if old:
            if cause.last > old.last:
                old.last, old.told, self._unsaved = cause.last, False, True
        elif len(known.causes) < causes.CAUSES:
            known.causes[name] = cause
            self._touch()

    def _set(self, known: Known, kind: str, failed: bool, cause: Cause) -> None:
        """Keep what a poll saw, or end it."""
        old = known.causes.get(kind)
        if not failed or not self._choice.checks or (old and old.number != cause.number):
            self._end(known, kind)
            old = None
        if failed and self._choice.checks and not old:
            known.causes[kind] = cause
            self._touch()
        elif old and not old.counts:
            old.seen += 1
            self._touch()

    def _end(self, known: Known, name: str) -> None:
        cause = known.causes.pop(name, None)
        if cause:
            self._over.add(self._state, known, name, cause)
            self._touch()

    def _touch(self) -> None:
        self._changed = self._unsaved = True

    def _reasons(self, uuid: str, now: float) -> list[Reason]:
        state = self._state
        found = [one for one in state.gpus[uuid].causes.values() if one.counts] if uuid in state.gpus else []
        found += [one for one in state.unwatched.values() if now - one.since >= GRACE]
        return reason.reasons(found)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= xids.HIGHEST else None
