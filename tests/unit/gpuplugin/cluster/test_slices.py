"""How slices wait. What is written is in test_slice_plan, and in e2e/test_dra_slices with a real API server."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import pytest

from gpuplugin.cluster import slices
from gpuplugin.cluster.slices import Slices


@pytest.mark.parametrize("desired", [None, [[]]], ids=["nothing is desired", "nothing has been listed"])
def test_who_can_write_nothing_sleeps(monkeypatch: pytest.MonkeyPatch, desired: Any) -> None:
    monkeypatch.setattr(slices, "TICK", 0.05)
    one = Slices(None, "node-1", lambda _: None)  # type: ignore[arg-type]
    one.want(desired)
    began = time.monotonic()
    assert len([*islice(one.write(), 4)]) == 4
    assert time.monotonic() - began >= 4 * 0.05
