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


@pytest.mark.parametrize(("last", "ended"), [(4.0, True), (5.0, True), (6.0, False)])
def test_an_event_that_came_again_is_another_one(last: float, ended: bool) -> None:
    assert over().has("GPU-0", "0", Cause("xid", 0, last, 94)) is ended
    assert not over().has("GPU-1", "0", XID)
    assert not over().has("GPU-0", "1", XID)


def test_what_is_no_event_and_what_is_of_no_gpu_of_the_state_is_not_noted() -> None:
    found, state = EndedEvents(), State("boot", {"GPU-0": GpuRecord(), "GPU-1": GpuRecord()})
    found.add(state, state.gpus["GPU-0"], "lost", Cause("lost", 0, 5.0))
    found.add(state, GpuRecord(), "94", XID)
    assert not any(found.has(uuid, name, XID) for uuid in ("GPU-0", "") for name in ("lost", "94"))


@pytest.mark.parametrize("more", [0, 1])
def test_there_is_a_bound(more: int) -> None:
    gpus, names = over(gpus=causes.GPUS + more), over(names=causes.OVER + more)
    assert [gpus.has(f"GPU-{number}", "0", XID) for number in (0, 1)] == [not more, True]
    assert [names.has("GPU-0", str(number), XID) for number in (0, 1)] == [not more, True]
