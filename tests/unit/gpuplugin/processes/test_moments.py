"""Moments in which all that look now and then look together."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gpuplugin.processes import moments

THREADS = """
import asyncio, os
from gpuplugin.processes import moments
asyncio.run(moments.begin_grpc())
for thread in os.listdir("/proc/self/task"):
    print(thread == str(os.getpid()), open(f"/proc/{thread}/timerslack_ns").read().strip())
"""


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("now", [0.0, 1.0, 2.999, 3.0, 1e6])
def test_the_next_is_a_multiple_of_the_same_clock(now: float, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert 0 < moments.until(number) <= number * moments.EACH
    assert (now + moments.until(number)) % (number * moments.EACH) == pytest.approx(0)


def test_grpc_s_threads_may_be_late_and_the_loop_may_not() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], env={"PYTHONPATH": ":".join(sys.path)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    found = [line.split() for line in done.stdout.splitlines()]
    assert [slack for main, slack in found if main == "True"] == ["50000"]
    assert {slack for main, slack in found if main != "True"} == {str(moments.SLACK_NS)}
