"""What a node publishes of GPUs that are cut on demand, and what becomes of a child that fails."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from bench import fragments

from gpuplugin.dra import cutting
from gpuplugin.dra.cutting import OnDemand, Published
from gpuplugin.dra.partitions import is_unmade, name_partition
from gpuplugin.settings import settings
from gpushim.ground.errors import GpushimError
from gpushim.inventory import nvml_program
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

SETTINGS = settings.resolve({"on-demand": ["0"]}, {}, {})
MADE = name_partition(uuid(0).lower(), "1g.5gb", 3)


def published(monkeypatch: pytest.MonkeyPatch, host: Any, *held: str, lacks: tuple[str, ...] = ()) -> Published:
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(lacks), ""))
    node = OnDemand(lambda: host, dict)
    node._profiles = {uuid(0): fragments.profiles_of("A100-40")}
    return node.publish(host, SETTINGS, held)


def names(row: Published) -> set[str]:
    return {device.name for device in row.devices}


def test_another_gpu_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    row = published(monkeypatch, snapshot([gpu(0, mig=True), gpu(1)]))
    assert [device.name for device in row.devices if not is_unmade(device)] == [uuid(1).lower()]
    assert [counter_set["name"] for counter_set in row.counters] == [uuid(0).lower()]


def test_one_that_is_not_in_mig_mode_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    row = published(monkeypatch, snapshot([gpu(0)]))
    assert (names(row), row.counters) == ({uuid(0).lower()}, [])


def test_what_was_made_for_a_claim_has_its_uuid_and_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before = published(monkeypatch, snapshot([gpu(0, mig=True)]))
    host = snapshot([gpu(0, mig=True)], [mig(0, 3)])
    row = published(monkeypatch, host, MADE)
    assert [device.body for device in row.devices] == [device.body for device in before.devices]
    assert [device.uuid for device in row.devices if not is_unmade(device)] == [host["mig"][0]["uuid"]]


def test_it_is_not_there_for_claims_before_engines_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = snapshot([gpu(0, mig=True)], [mig(0, 3)])
    row = published(monkeypatch, host, MADE, lacks=(host["mig"][0]["uuid"],))
    assert all(map(is_unmade, row.devices))


def test_what_somebody_else_made_is_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    host = snapshot([gpu(0, mig=True)], [mig(0, 3)])
    row = published(monkeypatch, host)
    assert host["mig"][0]["uuid"].lower() in names(row)
    assert MADE not in names(row)
    assert name_partition(uuid(0).lower(), "3g.20gb", 0) not in names(row)
    assert name_partition(uuid(0).lower(), "3g.20gb", 4) in names(row)


ENDS = {
    "it crashes": ("import os; os.abort()", "NVML has ended its process"),
    "it prints something else": ("print('?')", "NVML has ended its process"),
    "it hangs": ("import time; time.sleep(600)", "NVML has not answered"),
    "it refuses": (f"print({json.dumps(json.dumps({'error': 'In use'}))})", "In use"),
}


@pytest.mark.parametrize(("program", "sentence"), ENDS.values(), ids=ENDS)
def test_a_child_that_fails_is_an_error_and_the_next_one_is_asked(
    monkeypatch: pytest.MonkeyPatch, program: str, sentence: str
) -> None:
    monkeypatch.setattr(cutting, "SLOW", 2.0 if "sleep" in program else 60.0)
    programs = [program, "print('{\"answer\": []}')"]
    monkeypatch.setattr(nvml_program, "program", lambda *_: [sys.executable, "-c", programs.pop(0)])

    async def story() -> None:
        node = OnDemand(lambda: snapshot([gpu(0, mig=True)]), dict)
        with pytest.raises(GpushimError, match=sentence):
            await node._ask("list", uuid(0))
        assert await node._ask("list", uuid(0)) == []

    asyncio.run(story())


def test_in_a_pod_nothing_is_cut() -> None:
    row = settings.resolve({"on-demand": ["0"]}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {})
    assert (row.values["on-demand"], row.values["exclude"]) == ([], [])
    assert any("on-demand" in note for note in row.notes)


def test_the_device_plugin_leaves_them_out() -> None:
    assert settings.resolve({"on-demand": ["0"], "exclude": ["1"]}, {}, {}).values["exclude"] == ["1", "0"]


def test_a_gpu_that_is_lost_keeps_no_other_from_being_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the driver beside it."""
    host = snapshot([gpu(0, mig=True), gpu(1, mig=True)])
    node, profiles = OnDemand(lambda: host, dict), fragments.profiles_of("A100-40")
    answers = [{"error": "NVML refuses: GPU is lost"}, {"answer": [[*profile] for profile in profiles]}]
    programs = [f"print({json.dumps(answer)!r})" for answer in answers]
    monkeypatch.setattr(nvml_program, "program", lambda *_: [sys.executable, "-c", programs.pop(0)])
    with pytest.raises(GpushimError, match=f"{uuid(0)}: NVML refuses: GPU is lost"):
        asyncio.run(node.learn(host, {"on-demand": ["0", "1"]}))
    assert [*node._profiles] == [uuid(1)]
