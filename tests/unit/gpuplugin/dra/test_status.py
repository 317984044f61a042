"""What the DRA driver tells of claims: those that it has refused, and how many have devices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.dra.status import Status
from unit.gpuplugin.record import rows

FIRST = {"uid": "u1", "namespace": "d", "name": "c"}
AGAIN, OTHER = {**FIRST, "uid": "u2"}, {"uid": "u3", "namespace": "e", "name": "c"}


def refusals(*asked: tuple[dict[str, str], Any]) -> dict[str, str]:
    """Have claims prepared one after the other, with these answers; return why those that are told were refused."""
    answers = iter([{claim["uid"]: answer} for claim, answer in asked])

    async def prepare(_: Any) -> Any:
        return next(answers)

    now: Any = SimpleNamespace(rival="", problem="", lacks="", offered=[], slices=None)
    link: Any = SimpleNamespace(published={})

    async def story() -> dict[str, str]:
        claims: Any = SimpleNamespace(prepare=prepare, warned={})
        one = Status(lambda: now, claims, None, link, None)  # type: ignore[arg-type]
        one.driver = SimpleNamespace(registered=True, refused="")  # type: ignore[assignment]
        for claim, _ in asked:
            await one.prepare([claim])
        rows = one.asked()["refusals"]
        return {f"{row['namespace']}/{row['name']}": row["why"] for row in rows}

    return asyncio.run(story())


def test_a_claim_is_refused_until_it_is_prepared() -> None:
    assert refusals((FIRST, "no"), (OTHER, "neither")) == {"d/c": "no", "e/c": "neither"}
    assert refusals((FIRST, "no"), (OTHER, "neither"), (FIRST, [])) == {"e/c": "neither"}


def test_a_claim_that_is_made_again_counts_in_the_place_of_the_one_before() -> None:
    assert refusals((FIRST, "no"), (AGAIN, [])) == {}
    assert refusals((FIRST, "no"), (AGAIN, "not yet")) == {"d/c": "not yet"}


def test_claims_of_other_drivers_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    foreign = rows.claim(rows.claim_device(rows.TWO), name="theirs", driver="other.org")
    claims = {"u": rows.claim(rows.claim_device(rows.ONE)), "claim d/theirs of other.org": foreign}
    file = rows.save(rows.record(claims=claims))
    now: Any = SimpleNamespace(problem="", offered=[], slices=None, taints=dict, node="n", why={}, reasons={})
    link: Any = SimpleNamespace(published={})
    status = Status(lambda: now, None, file, link, None)  # type: ignore[arg-type]
    status.driver = SimpleNamespace(registered=True, refused="")  # type: ignore[assignment]
    samples = {(name, labels.get("resource", "")): value for name, labels, value in status.state().samples}
    assert (samples["claims", ""], samples["claimed_devices", "gpu.nvidia.com"]) == (1, 1)
