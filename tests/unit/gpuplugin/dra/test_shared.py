"""What becomes of a claim's groups when it is over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.dra import shared
from gpuplugin.dra.shared import Sharing
from gpuplugin.mps import of_claims
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

UID = "12345678-1234-4234-8234-123456789012"
LATE = shared.END + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("gpuplugin.dra.shared.time.monotonic", lambda: found.now)
    return found


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    """Of a node where no claim shares anything, and one that is over has left a group."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(of_claims, "shared", dict)
    monkeypatch.setattr("gpuplugin.mps.mps.Units.need", lambda *_: None)
    (tmp_path / "mps").mkdir()
    ledger: Any = SimpleNamespace(claims=dict, unshare=lambda _: None)
    return Sharing(ledger, lambda _: pytest.fail("nothing is started"), lambda: snapshot([gpu(0)]))


def left_behind(state: Path) -> None:
    """Have a claim's supervisor be gone without its work."""
    (state / f"mps/claim-{UID}-0").mkdir()
    (state / f"mps/claim-{UID}-0/compute-modes.json").write_text(json.dumps({uuid(0): 0}))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("compute-modes.json", {uuid(0): 0}),
        ("time-slices.json", {uuid(0): 1}),
        ("state.json", {"group": "g", "gpus": [uuid(0)]}),
    ],
)
def test_a_gpu_that_waits_too_long_for_its_former_state_is_tainted(
    tmp_path: Path, sharing: Sharing, clock: SimpleNamespace, file: str, content: dict[str, Any]
) -> None:
    place = tmp_path / f"mps/claim-{UID}-0" / file
    sharing._look()
    place.parent.mkdir()
    place.write_text(json.dumps(content))
    sharing._look()
    assert (sharing.owed, sharing.problems) == (frozenset(), {})
    clock.now += LATE
    sharing._look()
    assert sharing.owed == {uuid(0)}
    assert "has not ended with its claim" in sharing.problems[uuid(0)]
    with pytest.raises(GpushimError, match="has not ended with its claim"):
        sharing.check([], [uuid(0)])
    place.unlink()
    sharing._look()
    assert (sharing.owed, sharing.problems) == (frozenset(), {})


def test_a_driver_that_begins_waits_no_second_time(tmp_path: Path, sharing: Sharing, clock: SimpleNamespace) -> None:
    left_behind(tmp_path)
    sharing._look()
    assert sharing.owed == {uuid(0)}


def test_no_moment_is_between_the_end_and_the_taint(
    tmp_path: Path, sharing: Sharing, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing._look()
    left_behind(tmp_path)
    monkeypatch.setattr(shared, "END", -1.0)
    asyncio.run(sharing.end([UID]))
    assert sharing.owed == {uuid(0)}


def test_a_claim_that_lives_owes_nothing(
    tmp_path: Path, sharing: Sharing, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path)
    monkeypatch.setattr(of_claims, "shared", lambda: {UID: {"sharing": []}})
    for _ in range(2):
        sharing._look()
        clock.now += LATE
    assert sharing.owed == frozenset()
