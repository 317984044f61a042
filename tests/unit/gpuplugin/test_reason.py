"""What is said of a reason."""

from __future__ import annotations

import re

import pytest

from gpuplugin import reason, xids
from gpuplugin.causes import Cause


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Cause("xid", 0, 0, 79), "XID 79, the GPU has fallen off the bus"),
        (Cause("xid", 0, 0, 9999), "XID 9999"),
        (Cause("xid", 0, 0), "further XIDs"),
        (Cause("ecc", 0, 0), "an uncorrectable memory error (double-bit ECC)"),
        (Cause("recovery", 0, 0, 1), "the driver asks for a reset of the GPU (nvidia-smi --gpu-reset)"),
        (Cause("recovery", 0, 0, 99), "the driver asks for recovery action 99, which gpushim does not know"),
        (Cause("lost", 0, 0), "the GPU is lost from the bus"),
        (Cause("gone", 0, 0), "NVML does not list the GPU any more"),
        (Cause("rows", 0, 0), "a memory row could not be replaced, so the GPU is to be exchanged (RMA)"),
        (Cause("error", 0, 0, why="Unknown Error"), "the GPU's calls fail: Unknown Error"),
        (Cause("blind", 0, 0, why="polls: a call hangs"), "the GPU cannot be watched: polls: a call hangs"),
    ],
)
def test_each_kind_says_what_and_since_when(cause: Cause, text: str) -> None:
    said = reason.of(cause).text
    assert said.startswith(text + " (since ")
    assert re.fullmatch(r" \(since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)", said[len(text) :])


@pytest.mark.parametrize(
    ("cause", "until"),
    [
        (Cause("lost", 0, 0), "when a poll does not see it any more"),
        (Cause("xid", 0, 0, 94, ends=xids.TIME), "60 s after the last one, when the GPU answers"),
        (
            Cause("xid", 0, 0, 48, ends=xids.ACTION),
            "10 s after the last one, when the driver asks for nothing; else ",
        ),
        (
            Cause("xid", 0, 0, 119, ends=xids.AGAIN),
            "when the driver, having asked for a recovery action, does so no ",
        ),
    ],
)
def test_each_says_when_it_ends(cause: Cause, until: str) -> None:
    assert reason.of(cause).until.startswith(until)
