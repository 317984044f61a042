from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from gpuplugin import daemon
from gpuplugin.dra import status
from gpuplugin.dra.claims_front import ClaimsFront
from gpuplugin.dra.link import LinkSocket
from gpuplugin.health.reason import UNTIL, Reason
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.settings import settings, xids
from gpuplugin.snapshot.release import PROBLEM
from gpushim.containers.kubelet import Claim
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record.scene import ONE, Scene, scene
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

__all__ = ["scene"]

HOST = snapshot([gpu(0), gpu(1)])


def made(folder: Path, **values: Any) -> ClaimsFront:
    chosen = settings.resolve({}, {}, {})
    chosen.values.update(values)
    link, watch = LinkSocket(str(folder / "s"), 0), KubeletWatch(lambda: str(chosen.values["kubelet-dir"]))
    return ClaimsFront("node-1", link, lambda: chosen, watch, asyncio.create_task, lambda: None)


def test_nothing_is_offered_before_the_record_has_what_kubelet_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    tries: list[Any] = []

    async def reconcile(watch: KubeletWatch) -> None:
        tries.append(watch)
        if len(tries) == 1:
            raise GpushimError("the disk is full")
        watch.state = watch.state._replace(snapshot=HOST)

    async def look() -> None:
        with front._once("snapshot"):
            await front._go_by(host)

    monkeypatch.setattr(KubeletWatch, "reconcile", reconcile)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))
    front, host = made(tmp_path), snapshot([gpu(0)])
    asyncio.run(look())
    assert (front._slices(), front._offer.problem) == ([[]], "the disk is full")
    for _ in range(2):
        asyncio.run(look())
    assert len(tries) == 2


@pytest.mark.parametrize("value", ["refuse", "serve"])
def test_claims_of_others_count_for_both_fronts_or_for_none(scene: Scene, value: str) -> None:
    """Else one would write down each moment what the other takes out."""
    scene.kubelet_starts()
    scene.claims = [Claim("d", "c", "other.example", "node", "gpu-0", (f"nvidia.com/gpu={ONE}",))]
    chosen = settings.resolve({}, {}, {"other-givers": value, "kubelet-dir": str(scene.top)})
    watches: list[KubeletWatch] = []

    def make(_: Any, watch: KubeletWatch, *__: Any) -> Any:
        watches.append(watch)
        return SimpleNamespace(program="")

    agent = daemon.Agent(chosen, None, [make, make])
    agent._wake = Mock()
    watch, other = watches
    assert watch is other
    watch.snapshot = scene.snapshot
    watch.file.prepare()
    asyncio.run(watch.reconcile())
    claims = ["claim d/c of other.example"] if value == "refuse" else []
    assert [*watch.file.read_current()["claims"]] == claims


def test_what_is_let_go_is_not_offered_before_another_snapshot(half: Any) -> None:
    half.hold(PROBLEM)
    assert half._slices() == [[]]
    half.hold("")
    assert half._slices() == [[]]
    asyncio.run(half._go_by(snapshot([gpu(0)])))
    assert [len(row) for row in half._slices()] == [1]


def test_profiles_that_nvml_did_not_tell_are_asked_for_again(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same snapshot: until then GPUs that are cut on demand have no partitions."""
    learn = AsyncMock(side_effect=[GpushimError("NVML has not answered"), None, None])
    monkeypatch.setattr(half._on_demand, "learn", learn)
    half.hold(PROBLEM)
    half.hold("")
    host = snapshot([gpu(0)])
    for _ in range(3):
        asyncio.run(half._go_by(host))
    assert learn.await_count == 2


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimsFront:
    """One with two GPUs."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))
    one: Any = made(tmp_path)
    one._driver = SimpleNamespace(tell=lambda: None)
    asyncio.run(one._go_by(HOST))
    return one  # type: ignore[no-any-return]


def xid(number: int) -> Reason:
    ends = xids.verdict(number).ends
    return Reason("xid", xids.text(number), 1.0, UNTIL[ends], number=number, passes=ends == xids.TIME)


def test_what_becomes_unhealthy_and_healthy_is_logged_once(half: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gpushim"):
        for reasons in ({}, {uuid(1): [xid(79)]}, {uuid(1): [xid(79)]}, {}, {}):
            half.judge(reasons, HOST)
    who = f"{uuid(1)} of gpu.nvidia.com is"
    assert caplog.messages == [f"{who} unhealthy: {xids.text(79)}", f"{who} healthy again"]


def test_what_is_unhealthy_is_told_with_its_cure_and_what_passes_last(half: Any) -> None:
    half.judge({uuid(0): [xid(94)], uuid(1): [xid(94), xid(79)]}, HOST)
    found = [*status._unhealthy(half._now())]
    told = [(row["uuid"], row["cure"], row["until"]) for row in found]
    assert told == [(uuid(1), "reboot", ""), (uuid(0), "wait", UNTIL[xids.TIME])]
    assert (found[0]["gpu"], found[0]["why"]) == (uuid(1), f"{xids.text(94)}; {xids.text(79)}")
