"""Events that are over, so that another instance, which has not found that out yet, does not bring them back.

Out of scope: when an event is over (causes.py); the file in which instances tell each other (health.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.health import causes

if TYPE_CHECKING:
    from gpuplugin.health.causes import Cause, Known, State

MOST = 64  # of a GPU


class Over:
    """Those of this process, by UUID of a GPU and by name: when each was last heard."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}

    def add(self, state: State, known: Known, name: str, cause: Cause) -> None:
        """Take note of one that has ended."""
        uuid = next((uuid for uuid, one in state.gpus.items() if one is known), "")
        if cause.kind in causes.EVENTS and uuid:
            found = self._last.pop(uuid, {})
            self._last = dict([*self._last.items()][1 - causes.GPUS :])
            self._last[uuid] = {**dict([*found.items()][1 - MOST :]), name: cause.last}

    def has(self, uuid: str, name: str, cause: Cause) -> bool:
        """Say whether an event has ended, and was not heard since."""
        return cause.last <= self._last.get(uuid, {}).get(name, -1.0)
