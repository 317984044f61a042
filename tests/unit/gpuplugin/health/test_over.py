"""Of what is over the last of each GPU are known, of the last GPUs."""

from __future__ import annotations

import pytest

from gpuplugin.health import causes
from gpuplugin.health.causes import Cause, EndedEvents, GpuRecord, State

XID = Cause("xid", 0, 5.0, 94)


def over(gpus: int = 1, names: int = 1) -> EndedEvents:
    """What has taken note of so many GPUs' events, of so many names each."""
    found, state = EndedEvents(), State("boot", {f"GPU-{number}": GpuRecord() for number in range(gpus)})
    for known in state.gpus.values():
        for number in range(names):
            found.add(state, known, str(number), XID)
    return found


@pytest.mark.parametrize("more", [0, 1])
def test_there_is_a_bound(more: int) -> None:
    gpus, names = over(gpus=causes.GPUS + more), over(names=causes.OVER + more)
    assert [gpus.has(f"GPU-{number}", "0", XID) for number in (0, 1)] == [not more, True]
    assert [names.has("GPU-0", str(number), XID) for number in (0, 1)] == [not more, True]
