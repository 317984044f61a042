"""The state of a node's slices: what to say of it, when to try again, and whether somebody works against it.

Out of scope: locks; slices.py has them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.pause import Pause
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import quote
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.cluster.slice_plan import Plan, Seen

AT_ONCE = 4  # repairs, before each waits longer than the one before
CALM = 60.0  # seconds without a repair, after which nobody works against it


class State:
    """The state.

    Attributes:
        say: whether to say it although nothing has changed.
    """

    def __init__(self) -> None:
        self.say = False
        self._generation, self._dropped = 0, list[str]()
        self._problems = {"write": "", "contest": "", "watch": ""}
        self._settled = False  # whether all was as it is wanted
        self._repairs, self._repaired = 0, -CALM
        self._contest, self._failing = Pause(), Pause()
        self._not_before = 0.0
        self._sent = self._message()  # nothing has been written, which need not be said

    def begin(self, anew: bool) -> None:
        """Something else is desired, which need not wait; anew: nothing was, and what went then is no contest."""
        if anew:
            self._repairs, self._repaired, self._contest = 0, -CALM, Pause()
        self._settled, self._not_before = False, 0.0
        self._problems["write"] = ""

    def wait(self, most: float) -> float:
        """Return the seconds until something may be written, at most so many."""
        return max(0.0, min(most, self._not_before - time.monotonic()))

    def settle(self, seconds: float) -> None:
        """Let nothing be written for so long, as more may come."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def again(self) -> None:
        """Let what has failed be tried now: the server answers."""
        if self._problems["write"]:
            self._not_before = 0.0

    def repairing(self, plan: Plan, there: Iterable[Seen]) -> None:
        """Count a repair, and let the next one wait if there are many."""
        if not self._settled:
            return
        self._settled = False
        now = time.monotonic()
        if now - self._repaired > CALM:
            self._repairs, self._contest = 0, Pause()
        self._repairs, self._repaired = self._repairs + 1, now
        if self._repairs > AT_ONCE:
            by = next((one.by for one in there if one.by), "")
            who = f' ("{quote(by)}")' if by else ""
            self._not_before = now + self._contest.seconds()
            self.problem(
                "contest",
                f"somebody{who} keeps changing or deleting this node's ResourceSlices; if that is another "
                f"driver named {OWN_DRIVER}, remove it",
            )

    def failed(self, sentence: str) -> None:
        """Note why nothing could be written, and when it is tried again."""
        self._not_before = time.monotonic() + self._failing.seconds()
        self.problem("write", sentence)
        self.say = True

    def done(self, generation: int, dropped: set[str]) -> None:
        """Note that all is as it is desired."""
        if dropped and sorted(dropped) != self._dropped:
            logger.warning("the API server dropped %s: it has those features off", ", ".join(sorted(dropped)))
        self._generation, self._dropped, self._settled = generation, sorted(dropped), True
        self._failing = Pause()
        self.problem("write", "")

    def problem(self, source: str, sentence: str) -> None:
        """Note a problem, and log it once; "": it is over."""
        if sentence and sentence != self._problems[source] and source != "watch":  # which parts.py logs
            logger.warning("%s; retrying", sentence)
        self._problems[source] = sentence

    def changed(self) -> bool:
        """Say whether there is something to be said."""
        return self._message() != self._sent

    def message(self) -> dict[str, Any] | None:
        """Return what is to be said now; None if that has been said."""
        found = self._message()
        if found == self._sent and not (self.say and self._generation + bool(found["problem"])):
            return None
        self._sent, self.say = found, False
        return found

    def _message(self) -> dict[str, Any]:
        if time.monotonic() - self._repaired > CALM:
            self._problems["contest"] = ""
        problem = next(filter(None, self._problems.values()), "")
        return {"generation": self._generation, "problem": problem, "dropped": self._dropped}
