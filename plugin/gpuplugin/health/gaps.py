"""Until when each GPU was listened to: what came after that is to be asked for.

Out of scope: asking (event_loop.py), and the file that keeps it (causes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_lines
from gpuplugin.settings import xids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.health.causes import Known, State

COUNTS = ("ecc", "pages")  # of a GPU, which grow with uncorrectable memory errors
DRIFT = 1e-4  # of the kernel's log, whose clock nothing corrects, against the clock that NTP keeps


class Listened:
    """The GPUs to whose events a child listens. All times are seconds since boot (system.clock).

    Args:
        state: has what `note` takes down.

    Attributes:
        now: their UUIDs.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.now: set[str] = set()

    def begin(self, uuids: Iterable[object], now: float) -> None:
        """Take note that these are listened to, and no others."""
        self.note(now)
        self.now = {uuid for uuid in uuids if isinstance(uuid, str)}
        self.note(now)

    def note(self, now: float) -> None:
        """Take down that they are listened to still."""
        for uuid in self.now & self._state.gpus.keys():
            self._state.gpus[uuid].heard = now

    def until(self, now: float) -> dict[str, nvml_lines.Since]:
        """Return from when on events of GPUs may not have been heard, by UUID; none of those that never were."""
        self.note(now)
        early = nvml_lines.MOMENT + DRIFT * now
        found = {uuid: known for uuid, known in self._state.gpus.items() if known.heard}
        return {uuid: nvml_lines.Since(max(known.heard - early, 0.0), known.bound) for uuid, known in found.items()}


def count(known: Known, found: dict[str, Any]) -> tuple[bool, bool]:
    """Take what a GPU counts.

    Args:
        known: the GPU.
        found: what it was asked (nvml_lines.ask).

    Returns:
        whether a number is another than before; whether it is more than before.
    """
    changed = more = False
    for name in COUNTS:
        old, new = getattr(known, name), found.get(name)
        if type(new) is int and 0 <= new <= xids.HIGHEST and new != old:
            changed, more = True, more or (old is not None and new > old)
            setattr(known, name, new)
    return changed, more
