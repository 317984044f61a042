"""How slices wait. What is written is in test_slice_plan, and in e2e/test_dra_slices with a real API server."""

from __future__ import annotations

import threading
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


def test_what_is_to_settle_is_put_right_as_soon_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it came while the writer waited for nothing in particular."""
    monkeypatch.setattr(slices, "TICK", 20.0)
    one, done = Slices(None, "node-1", lambda _: None), threading.Semaphore(0)  # type: ignore[arg-type]
    monkeypatch.setattr(one, "_put_right", lambda *_: done.release())
    one._listed = True
    threading.Thread(target=lambda: [*islice(one.write(), 10)], daemon=True).start()
    one.want([[]])
    assert done.acquire(timeout=10)
    time.sleep(0.1)  # it waits
    with one._changed:
        one._due = True
        one._state.settle(0.2)
        one._changed.notify_all()
    assert done.acquire(timeout=10)
