"""Until when each GPU was listened to: what came after that is to be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.health import nvml_lines
from gpuplugin.settings import xids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.health.causes import GpuRecord, State

COUNTS = ("ecc", "pages")  # of a GPU, which grow with uncorrectable memory errors
DRIFT = 1e-4  # of the kernel's log, whose clock nothing corrects, against the clock that NTP keeps


class Listening:
    """The GPUs to whose events a child listens. All times are seconds since boot (system.clock).

    Args:
        state: has what `note` takes down.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.uuids: set[str] = set()

    def begin(self, uuids: Iterable[object], moment: float) -> None:
        """Note that these are listened to, and no others."""
        self.note(moment)
        self.uuids = {uuid for uuid in uuids if isinstance(uuid, str)}
        self.note(moment)

    def note(self, moment: float) -> None:
        for uuid in self.uuids & self._state.gpus.keys():
            self._state.gpus[uuid].heard = moment

    def until(self, moment: float) -> dict[str, nvml_lines.Since]:
        """Return from when on events of GPUs may not have been heard, by UUID; none of those that never were."""
        self.note(moment)
        early = nvml_lines.MOMENT + DRIFT * moment
        heard = {uuid: gpu for uuid, gpu in self._state.gpus.items() if gpu.heard}
        return {uuid: nvml_lines.Since(max(gpu.heard - early, 0.0), gpu.bound) for uuid, gpu in heard.items()}


def count(gpu: GpuRecord, answer: dict[str, Any]) -> tuple[bool, bool]:
    """Set the numbers that a GPU counts to those of its answer (nvml_lines.ask).

    Returns:
        whether a number is another than before; whether it is more than before.
    """
    changed = grown = False
    for name in COUNTS:
        old, new = getattr(gpu, name), answer.get(name)
        if type(new) is int and 0 <= new <= xids.HIGHEST and new != old:
            changed, grown = True, grown or (old is not None and new > old)
            setattr(gpu, name, new)
    return changed, grown
