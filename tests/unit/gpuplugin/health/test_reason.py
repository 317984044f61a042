"""What is said of a reason."""

from __future__ import annotations

import time

import pytest

from gpuplugin.health import reason
from gpuplugin.health.causes import Cause
from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.inventory import earlier
from unit.gpuplugin.snapshots import gpu, mig, snapshot


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
        (Cause("unwatched", 0, 0, why="a call hangs"), "the GPU cannot be watched: a call hangs"),
    ],
)
def test_each_kind_says_what(cause: Cause, text: str) -> None:
    assert reason.make_reason(cause).text == text


@pytest.mark.parametrize(
    ("causes", "reasons"),
    [
        ([("unwatched", 1), ("unwatched", 2)], [("unwatched", 1)]),
        ([("unwatched", 1), ("error", 2), ("gone", 3), ("lost", 4)], [("lost", 1)]),
        ([("error", 3), ("xid", 1), ("rows", 4), ("gone", 2)], [("xid", 1), ("gone", 2), ("rows", 4)]),
        ([("ecc", 1), ("recovery", 2)], [("ecc", 1), ("recovery", 2)]),
        ([], []),
    ],
)
def test_a_gpu_that_does_not_answer_has_one_reason_for_that(
    causes: list[tuple[str, float]], reasons: list[tuple[str, float]]
) -> None:
    found = reason.reasons([Cause(kind, since, since) for kind, since in causes])
    assert [(one.kind, one.since) for one in found] == reasons


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("a; b", "a; b"),
        (
            f"/c: x is not a known key; {'k, ' * 99}",
            "/c: x is not a known key; gpushim device-plugin status says more",
        ),
        ("x" * 999, "x" * 999),
    ],
)
def test_a_long_sentence_is_not_said_of_each_device(sentence: str, said: str) -> None:
    assert reason.brief(sentence) == said


HUNG = f"GPU 1 (00000000:11:00.0) {earlier.HANGS}; a reset may help"


@pytest.mark.parametrize(
    ("problem", "kinds", "said"),
    [
        (HUNG, ["unwatched"], HUNG),
        (HUNG, ["ecc", "unwatched"], f"{HUNG}; {reason.TEXTS['ecc']}"),
        (HUNG, ["ecc"], reason.TEXTS["ecc"]),  # beside the device's own
        (None, ["lost"], reason.TEXTS["lost"]),
        ("GPU 1 has no usable device node", ["lost"], reason.TEXTS["lost"]),
    ],
)
def test_what_the_snapshot_says_of_it_is_said_once(problem: str | None, kinds: list[str], said: str) -> None:
    whole, part = gpu(1, mig=True, problem=problem), mig(1, 0)
    found = [reason.make_reason(Cause(kind, 0, 0)) for kind in kinds]
    uuids = (whole["uuid"], part["uuid"])
    assert reason.texts(dict.fromkeys(uuids, found), snapshot([gpu(0), whole], [part])) == dict.fromkeys(uuids, said)


RESET, WAIT = Cause("ecc", 0, 0, ends=xids.ACTION), Cause("xid", 0, 0, 94, ends=xids.TIME)


@pytest.mark.parametrize(
    ("causes", "cure"),
    [
        ([WAIT], "wait"),
        ([RESET, WAIT], "reset"),
        ([Cause("xid", 0, 0, 48, ends=xids.ACTION)], "reset"),
        ([Cause("xid", 0, 0, 79, ends=xids.ACTION), RESET], "reboot"),
        *(([Cause("xid", 0, 0, number, ends=xids.AGAIN)], "reboot") for number in (54, 151)),
        ([Cause("error", 0, 0)], "reset"),
        ([Cause("lost", 0, 0), WAIT], "reboot"),
        ([Cause("gone", 0, 0)], "reboot"),
        ([Cause("unwatched", 0, 0), RESET], "nvml"),
        ([Cause("recovery", 0, 0, 2), Cause("rows", 0, 0)], "exchange"),
        *(([Cause("recovery", 0, 0, number), RESET], "reset") for number in (1, 4)),
        *(([Cause("recovery", 0, 0, number), RESET], "reboot") for number in (2, 6, 7, 99)),
        ([Cause("recovery", 0, 0, 3), RESET], "end"),  # what ECC errors and XIDs wait for is the driver's action
    ],
)
def test_the_gravest_cure_counts(causes: list[Cause], cure: str) -> None:
    assert reason.cure(map(reason.make_reason, causes)) == cure


@pytest.mark.parametrize("step", [-3600.0, 0.0, 86400.0])
def test_since_when_is_shown_by_the_clock_on_the_wall(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    told, wall = reason.make_reason(Cause("lost", system.clock() - 60, 0)), time.time()
    monkeypatch.setattr(time, "time", lambda: wall + step)
    assert told.when == pytest.approx(wall + step - 60, abs=5)


@pytest.mark.parametrize(
    ("cause", "until"),
    [
        (Cause("lost", 0, 0), "when the driver, which is asked every few seconds, says so no more"),
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
    assert reason.make_reason(cause).until.startswith(until)
