"""What becomes of a claim's groups when it is over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra import shared
from gpuplugin.dra.claim import Claim
from gpuplugin.dra.shared import Sharing
from gpuplugin.mps import of_claims
from gpuplugin.record.allocations_file import AllocationsFile
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

UID = "12345678-1234-4234-8234-123456789012"
LATE = shared.END + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("gpuplugin.dra.shared.time.monotonic", lambda: found.now)
    return found


def prepare_claim() -> None:
    """Have the record have the claim, which shares nothing, or nothing any more."""
    rows.save(rows.record(claims={UID: rows.claim()}))


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    """Of a node where no claim shares anything, and one that is over has left a group."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr("gpuplugin.mps.mps.Units.need", lambda *_: None)
    (tmp_path / "mps").mkdir()
    return Sharing(AllocationsFile(), lambda _: pytest.fail("nothing is started"), lambda: snapshot([gpu(0)]))


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
    """As long as the record has its claim, nobody else gets it."""
    place = tmp_path / f"mps/claim-{UID}-0" / file
    prepare_claim()
    place.parent.mkdir()
    place.write_text(json.dumps(content))
    asyncio.run(sharing.look())
    assert (sharing.unrestored, sharing.problems) == ({}, {})
    clock.now += LATE
    assert sharing.unrestored.keys() == {uuid(0)}
    assert "has not ended yet" in sharing.problems[uuid(0)]
    with pytest.raises(GpushimError, match="has not ended yet"):
        sharing.check([], [uuid(0)])
    place.unlink()
    assert (sharing.unrestored, sharing.problems) == ({}, {})


def test_what_waits_in_vain_says_so(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuplugin.mps.mps.no_starter", lambda: "nobody starts units")
    group = MpsGroup(f"claim-{UID}-0", (MpsGpu(uuid(0), 0, 0),), None, 50, False)
    with pytest.raises(
        GpushimError, match=r"waits for what its containers share: .* does not run.*; nobody starts units$"
    ):
        asyncio.run(sharing.begin(Claim(UID, "d", "c", ()), [group], [], 0.0))


@pytest.mark.parametrize("looked", [False, True])
def test_no_moment_is_between_the_end_and_the_taint(tmp_path: Path, sharing: Sharing, looked: bool) -> None:
    """Whoever has waited for the end: this instance, one before it, or one beside it; and before the first look."""
    if looked:
        asyncio.run(sharing.look())
    left_behind(tmp_path)
    assert sharing.unrestored.keys() == sharing.problems.keys() == {uuid(0)}
    with pytest.raises(GpushimError, match="has not ended yet"):
        sharing.check([], [uuid(0)])


def test_a_claim_that_lives_owes_nothing(tmp_path: Path, sharing: Sharing, clock: SimpleNamespace) -> None:
    left_behind(tmp_path)
    group = MpsGroup(f"claim-{UID}-0", (MpsGpu(uuid(0), 0, 0),), None, 50, False)
    rows.save(rows.record(claims={UID: rows.claim(sharing=[of_claims.describe(group)])}))
    for _ in range(2):
        asyncio.run(sharing.look())
        clock.now += LATE
    assert sharing.unrestored == {}
