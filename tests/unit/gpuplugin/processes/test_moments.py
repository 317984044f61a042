"""Moments in which all that look now and then look together."""

from __future__ import annotations

import time

import pytest

from gpuplugin.processes import moments


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("now", [0.0, 1.0, 2.999, 3.0, 1e6])
def test_the_next_is_a_multiple_of_the_same_clock(now: float, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert 0 < moments.until(number) <= number * moments.EACH
    assert (now + moments.until(number)) % (number * moments.EACH) == pytest.approx(0)
