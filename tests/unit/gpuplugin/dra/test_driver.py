from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.control.letting_go import LettingGo
from gpuplugin.dra import status
from gpuplugin.dra.driver import NodeHalf
from gpuplugin.dra.link import Place
from gpuplugin.dra.status import Status
from gpuplugin.health.reason import UNTIL, Reason
from gpuplugin.kubelet import podresources
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.settings import settings, xids
from gpuplugin.settings.sources import Sources
from gpuplugin.snapshot.node_snapshot import OutdatedError
from gpushim.containers.kubelet import OWN_DRIVER, Claim
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

HOST = snapshot([gpu(0), gpu(1)])


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

    monkeypatch.setattr(KubeletWatch, "reconcile", reconcile)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))
    half = NodeHalf(settings.resolve({}, {}, {}), Sources({}, {}), "node-1", Place(str(tmp_path / "s"), 0))
    found = snapshot([gpu(0)])
    with pytest.raises(GpushimError, match="the disk is full"):
        asyncio.run(half._take(found))
    assert half._slices() == [[]]
    for _ in range(2):
        asyncio.run(half._take(found))
    assert len(tries) == 2


@pytest.mark.parametrize("kind", [GpushimError, OutdatedError])
def test_it_ends_if_its_container_is_outdated_and_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[GpushimError]
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    half = NodeHalf(settings.resolve({}, {}, {}), Sources({}, {}), "node-1", Place(str(tmp_path / "s"), 0))

    def read() -> None:
        with half._once("snapshot"):
            raise kind("as it is")

    if kind is OutdatedError:
        with pytest.raises(OutdatedError):
            read()
    else:
        read()
        assert half._offer.problem == "as it is"


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeHalf:
    """One with two GPUs, of which its `reasons` says what is wrong."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))
    made: Any = NodeHalf(settings.resolve({}, {}, {}), Sources({}, {}), "node-1", Place(str(tmp_path / "s"), 0))
    made._wake = SimpleNamespace(set=lambda: None)
    asyncio.run(made._take(HOST))
    made.reasons, made._driver = {}, SimpleNamespace(tell=lambda: None)
    made._watchers = SimpleNamespace(problems=lambda _: dict(made.reasons))
    return made  # type: ignore[no-any-return]


def xid(number: int) -> Reason:
    ends = xids.verdict(number).ends
    return Reason("xid", xids.text(number), 1.0, UNTIL[ends], number=number, passes=ends == xids.TIME)


def test_what_becomes_unhealthy_and_healthy_is_logged_once(half: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gpushim"):
        for reasons in ({}, {uuid(1): [xid(79)]}, {uuid(1): [xid(79)]}, {}, {}):
            half.reasons = reasons
            half._judge(HOST)
    who = f"{uuid(1)} of gpu.nvidia.com is"
    assert caplog.messages == [f"{who} unhealthy: {xids.text(79)}", f"{who} healthy again"]


def test_what_is_unhealthy_is_told_with_its_cure_and_what_passes_last(half: Any) -> None:
    half.reasons = {uuid(0): [xid(94)], uuid(1): [xid(94), xid(79)]}
    half._judge(HOST)
    found = [*status._unhealthy(half._now())]
    told = [(row["uuid"], row["cure"], row["until"]) for row in found]
    assert told == [(uuid(1), "reboot", ""), (uuid(0), "wait", UNTIL[xids.TIME])]
    assert (found[0]["gpu"], found[0]["why"]) == (uuid(1), f"{xids.text(94)}; {xids.text(79)}")


def test_root_has_it_let_go_of_the_gpus_and_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has some by a claim of this driver is told: they must end before the driver can be unloaded."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr("gpuplugin.processes.spawn.wait_for_all", nothing)
    rows = [Claim("a", "claim", driver, "node", "gpu-0", (), "pod", "main") for driver in (OWN_DRIVER, "other.com")]

    async def listed(_: str) -> Listed:
        return Listed([], rows)

    monkeypatch.setattr(podresources, "listed", listed)
    now: Any = SimpleNamespace(rival="", problem="", lacks="", offered=[], slices=None)
    link: Any = SimpleNamespace(published={})

    async def story() -> None:
        letting = LettingGo(asyncio.get_running_loop().create_task, nothing, lambda: None, lambda _: None, "x")
        one = Status(lambda: now, None, None, link, None, letting, "/none")  # type: ignore[arg-type]
        one.driver = SimpleNamespace(registered=True, refused="")  # type: ignore[assignment]
        answer = await one.by_word["release"]()
        assert (answer["closed"], [row["driver"] for row in answer["claims"]]) == (True, [OWN_DRIVER])
        assert answer["claims"][0]["pod"] == "pod"
        assert letting.held()
        told = (await one.by_word["claims"]())["claims"]
        assert json.loads(json.dumps(told)) == [{**row._asdict(), "cdi": [], "uids": []} for row in rows]
        await one.by_word["take"]()
        assert not letting.held()

    asyncio.run(story())


async def nothing() -> None:
    """Be done at once."""
