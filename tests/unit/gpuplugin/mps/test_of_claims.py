"""Groups of claims, as the record has them: what is written is read, by other versions too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.mps import of_claims
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record import rows

UID = "12345678-1234-4234-8234-123456789012"
NAME = f"claim-{UID}-0"


def group(*uuids: str, each: tuple[int | None, ...] = (), interval: int = 0) -> MpsGroup:
    gpus = tuple(MpsGpu(uuid, place, 0) for place, uuid in enumerate(uuids))
    return MpsGroup(NAME, gpus, None, 50, False, each, interval)


GROUPS = {
    "a daemon": group("GPU-1", "GPU-2"),
    "with limits": group("GPU-1", "GPU-2", each=(10240, None)),
    "a time slice": group("GPU-1", interval=3),
    "an instance": group("MIG-1"),
    "for all users": replace(group("GPU-1"), multi_user=True),
}


@pytest.mark.parametrize("one", GROUPS.values(), ids=GROUPS)
def test_what_is_written_is_read(one: MpsGroup) -> None:
    row = json.loads(json.dumps({"sharing": [{**of_claims.describe(one), "later": 1}]}))
    assert of_claims.groups_of(row) == [one]


def test_limits_and_who_is_alone() -> None:
    assert GROUPS["a daemon"].limits == (None, None)
    assert GROUPS["with limits"].limits == (10240, None)
    assert (GROUPS["a daemon"].exclusive, GROUPS["a time slice"].exclusive) == (["GPU-1", "GPU-2"], [])
    assert GROUPS["an instance"].exclusive == []


@pytest.mark.parametrize(
    "odd",
    [
        *(None, 3, [], {}, {"group": NAME}),
        {**of_claims.describe(group("GPU-1")), "group": "claim-../../x-0"},
        {**of_claims.describe(group("GPU-1")), "gpus": []},
        {**of_claims.describe(group("GPU-1")), "gpus": [3]},
        {**of_claims.describe(group("GPU-1")), "threads": "50"},
        {**of_claims.describe(group("GPU-1")), "each": [1, 2]},
        {**of_claims.describe(group("GPU-1")), "interval": True},
    ],
)
def test_what_is_not_understood_is_no_group(odd: Any) -> None:
    one = group("GPU-1")
    assert of_claims.groups_of({"sharing": [odd, of_claims.describe(one)]}) == [one]
    assert of_claims.groups_of({"sharing": odd}) == []


def test_a_group_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    assert of_claims.find(NAME) is None
    shares = rows.claim(sharing=[of_claims.describe(group("GPU-1"))])
    file = rows.save(rows.record(claims={UID: shares, "other": rows.claim()}))
    before = of_claims.version()
    assert of_claims.find(NAME) == group("GPU-1")
    assert [*of_claims.shared()] == [UID]
    rows.save(rows.record(claims={UID: rows.claim()}))
    assert (of_claims.find(NAME), of_claims.version() == before) == (None, False)
    Path(file.path).write_text("{")
    with pytest.raises(GpushimError, match="is damaged: what claims share is not known"):
        of_claims.find(NAME)


def test_what_groups_of_claims_have_left(tmp_path: Path) -> None:
    assert of_claims.claims_by_group(str(tmp_path)) == {}
    for name in (NAME, "gpu", "claim-x"):
        (tmp_path / "mps" / name).mkdir(parents=True)
    assert of_claims.claims_by_group(str(tmp_path)) == {NAME: UID}


def test_no_group_of_the_settings_has_such_a_name() -> None:
    from gpuplugin.settings.forms import is_name

    assert not is_name(NAME)
