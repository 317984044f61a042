"""The state of a node's slices: its message, the time of the next try, and whether somebody works against it.

Locks are in slices.py.
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

    from gpuplugin.cluster.slice_plan import Slice

AT_ONCE = 4  # repairs, before each waits longer than the one before
CALM = 60.0  # seconds without a repair, after which nobody works against it


class State:
    """The state.

    Attributes:
        say: whether to send the message although nothing has changed.
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
        """Note that other slices are desired, which need not wait; anew: none were, and their deletion then is no
        contest.
        """
        if anew:
            self._repairs, self._repaired, self._contest = 0, -CALM, Pause()
        self._settled, self._not_before = False, 0.0
        self._problems["write"] = ""

    def wait(self, limit: float) -> float:
        """Return the seconds until a write is allowed, at most `limit`."""
        return max(0.0, min(limit, self._not_before - time.monotonic()))

    def settle(self, seconds: float) -> None:
        """Allow no write for so long, as more changes may come."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def again(self) -> None:
        """Allow a failed write to be tried now: the server answers."""
        if self._problems["write"]:
            self._not_before = 0.0

    def repairing(self, slices: Iterable[Slice]) -> None:
        """Count a repair, and delay the next one if there are many."""
        if not self._settled:
            return
        self._settled = False
        time_now = time.monotonic()
        if time_now - self._repaired > CALM:
            self._repairs, self._contest = 0, Pause()
        self._repairs, self._repaired = self._repairs + 1, time_now
        if self._repairs > AT_ONCE:
            rival = next((slice_.by for slice_ in slices if slice_.by), "")
            name = f' ("{quote(rival)}")' if rival else ""
            self._not_before = time_now + self._contest.seconds()
            self.problem(
                "contest",
                f"somebody{name} keeps changing or deleting this node's ResourceSlices; if that is another "
                f"driver named {OWN_DRIVER}, remove it",
            )

    def failed(self, sentence: str) -> None:
        """Note why a write failed, and when to try again."""
        self._not_before = time.monotonic() + self._failing.seconds()
        self.problem("write", sentence)
        self.say = True

    def done(self, generation: int, dropped: set[str]) -> None:
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
        return self._message() != self._sent

    def message(self) -> dict[str, Any] | None:
        """Return the message to send; None if it has been sent."""
        message = self._message()
        if message == self._sent and not (self.say and self._generation + bool(message["problem"])):
            return None
        self._sent, self.say = message, False
        return message

    def _message(self) -> dict[str, Any]:
        if time.monotonic() - self._repaired > CALM:
            self._problems["contest"] = ""
        problem = next(filter(None, self._problems.values()), "")
        return {"generation": self._generation, "problem": problem, "dropped": self._dropped}
