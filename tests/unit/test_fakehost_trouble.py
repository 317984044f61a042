"""GPUs in trouble while a process has NVML open: events, errors, hangs, and MIG made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host, build
from fakehost.session import opened


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build(str(tmp_path / "host"), 2)


@pytest.mark.parametrize(
    ("gi", "ci", "told"), [(None, None, [2**32 - 1] * 2), (3, None, [3, 2**32 - 1]), (3, 0, [3, 0])]
)
def test_an_xid_wakes_who_waits(host: Host, gi: Any, ci: Any, told: list[int]) -> None:
    with opened(host) as ask:
        ask("register(1)")
        ask.send("wait(9000)")
        host.xid(0, 13)  # of a GPU that is not registered
        began = time.monotonic()
        host.xid(1, 79, gi, ci)
        assert ask.answer() == [host.gpus[1].uuid, 8, 79, *told]
        assert time.monotonic() - began < 5  # of 9
        assert ask("wait(1)") == {"error": 10}


@pytest.mark.parametrize(
    ("change", "words", "before", "after"),
    [
        (lambda host: host.recovery(1, 1), "field(1)", -3, 1),
        (lambda host: host.rows(1, 1, 0), "n.nvmlDeviceGetRemappedRows(gpus[1])", [0, 0, 0, 0], [0, 0, 1, 0]),
        (lambda host: host.rows(1, 0, 1), "n.nvmlDeviceGetRemappedRows(gpus[1])", [0, 0, 0, 0], [0, 0, 0, 1]),
        (lambda host: host.refuse_events(1, 3), "register(1)", None, {"error": 3}),
        (lambda host: host.lack("nvmlEventSetCreate"), "bool(n.nvmlEventSetCreate())", True, {"error": 3}),
        (lambda host: host.lack("nvmlDeviceGetRemappedRows", code=13), "field(1)", -3, -3),
    ],
)
def test_what_changes_is_told_at_once(
    host: Host, change: Callable[[Host], None], words: str, before: Any, after: Any
) -> None:
    with opened(host) as ask:
        assert ask(words) == before
        change(host)
        assert ask(words) == after
