"""Moments in which all that look now and then look together."""

from __future__ import annotations

import time

import pytest

from gpuplugin.processes import moments
from gpuplugin.processes.moments import until  # before looks_apart


@pytest.mark.parametrize("now", [0.0, 1.0, 3.999, 4.0, 1e6 + 0.1])
def test_the_next_is_a_multiple_of_the_same_clock(now: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert 0 < until() <= moments.EACH
    assert (now + until()) % moments.EACH == pytest.approx(0, abs=1e-6)
