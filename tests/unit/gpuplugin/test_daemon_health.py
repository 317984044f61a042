"""What the children tell reaches kubelet at once, and has the host looked at again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuplugin.health import watch_children
from gpushim.ground import system
from gpushim.inventory import earlier
from unit.gpuplugin.control.client import do
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.running_daemon import GPU, FakeChild, Host, health, host, running, sliced, top, wanted
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

__all__ = ["host", "top"]
WELL = health(uuid(0), uuid(1))
EVENT = 1.0  # seconds from an event to kubelet, most: sooner than the next look
XID: dict[str, Any] = {"xid": 79, "gi": None, "ci": None}


def poll(*gpus: int, migs: Any = (), **more: Any) -> dict[str, Any]:
    one = {"lost": False, "recovery": 0, "rows": [0, 0], "mig": False, "error": "", **more}
    return {"poll": {uuid(number): one for number in gpus}, "gpus": [uuid(number) for number in gpus], "migs": migs}


def test_an_xid_marks_every_replica(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, having=sliced(top, 2)) as kubelet:
            name = GPU + ".shared"
            await until(lambda: len(kubelet.well().get(name, ())) == 4)
            FakeChild.all["events"].heard({**XID, "gpu": uuid(1)})
            took = await until(lambda: kubelet.well()[name] == [f"{uuid(0)}::0", f"{uuid(0)}::1"])
            assert took < EVENT
            with pytest.raises(grpc.aio.AioRpcError, match="XID 79"):
                await kubelet.allocate(name, f"{uuid(1)}::1")
            devices = (await do(top, "status"))["resources"][0]["devices"]
            assert [why["kind"] for why in devices[1]["reasons"]] == ["xid"]
            assert not devices[0]["reasons"]

    asyncio.run(run())


@pytest.mark.parametrize("step", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_a_clock_that_is_set_changes_no_verdict(
    top: Path, host: Host, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuplugin.health.health.GRACE", 0.3)
    real = time.time

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: [child.does for child in FakeChild.all.values()] == ["begin"] * 2)
            for child in FakeChild.all.values():
                child.heard(
                    {"watching": [uuid(0), uuid(1)], "unwatched": {}} if child.name == "events" else poll(0, 1)
                )
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["events"].heard({"xid": 94, "gpu": uuid(1), "gi": None, "ci": None})
            await until(lambda: kubelet.well()[GPU] == [uuid(0)])
            monkeypatch.setattr(time, "time", lambda: real() + step)
            FakeChild.all["polls"].heard(poll(0, 1))
            await asyncio.sleep(0.3)
            assert kubelet.well()[GPU] == [uuid(0)]
            FakeChild.all["events"].mark_unwatched("it has ended", "")
            await until(lambda: kubelet.well()[GPU] == [], 5)  # whose time to wait is over
            (device, _) = (await do(top, "status"))["resources"][0]["devices"]
            assert device["reasons"][0]["since"] == pytest.approx(time.time(), abs=10)

    asyncio.run(run())


def test_gpus_that_nobody_has_asked_count_as_well_for_a_while_alone(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuplugin.health.health.GRACE", 0.5)

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await until(lambda: kubelet.well()[GPU] == [], 5)
            FakeChild.all["polls"].heard(poll(0, 1))
            await asyncio.sleep(0.2)
            assert kubelet.well()[GPU] == []
            FakeChild.all["events"].heard({"xid": 13, "gpu": uuid(0), "gi": None, "ci": None})  # before it tells who
            await asyncio.sleep(0.2)
            assert kubelet.well()[GPU] == []
            FakeChild.all["events"].heard({"watching": [uuid(0), uuid(1)], "unwatched": {}})
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_reasons_survive_a_restart(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["events"].heard({**XID, "gpu": uuid(1)})
            await until(lambda: kubelet.well()[GPU] == [uuid(0)])
        lists = []
        async with running(top) as kubelet:
            await until(lambda: bool(kubelet.lists.get(GPU)))
            lists.append(dict(kubelet.lists[GPU]))
        assert lists == [health(uuid(0), sick=(uuid(1),))]  # from the first list on

    asyncio.run(run())


@pytest.mark.parametrize(("ago", "sick"), [(1.0, True), (60.0, False)])
@pytest.mark.parametrize("let_go", [False, True])
def test_what_the_kernels_log_has_since_somebody_listened_counts_before_anything_is_given_out(
    top: Path, host: Host, ago: float, sick: bool, let_go: bool
) -> None:
    for folder in ("dev", "proc/driver/nvidia"):
        (top / "root" / folder).mkdir(parents=True)
    host.has(snapshot([gpu(0), gpu(1)], inputs={"root": f"{top}/root"}))

    def happens() -> None:
        when, pci = time.clock_gettime(time.CLOCK_MONOTONIC) - ago, gpu(1)["pci"].rpartition(".")[0]
        text = f"4,1,{round(1e6 * when)},-;NVRM: Xid (PCI:{pci}): 79, pid=1\n"
        (top / "root" / "dev" / "kmsg").write_text(text)

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["events"].heard({"watching": [uuid(0), uuid(1)], "unwatched": {}})
            if let_go:
                await do(top, "release")
                happens()
                await do(top, "take")
                host.has({**host.found, "looked": system.clock()})
                await until(lambda: uuid(0) in kubelet.well()[GPU])
                assert (uuid(1) not in kubelet.well()[GPU]) == sick
        happens()
        async with running(top) as kubelet:
            await until(lambda: bool(kubelet.lists.get(GPU)))
            assert (uuid(1) not in kubelet.well()[GPU]) == sick

    asyncio.run(run())


def test_a_call_that_hangs_is_a_reason_until_the_gpu_answers(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["polls"].mark_unwatched(f"a call of {uuid(1)} hangs", uuid(1))
            assert await until(lambda: kubelet.well()[GPU] == [uuid(0)]) < EVENT
            FakeChild.all["polls"].heard(poll(0, 1))
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


@pytest.mark.parametrize(
    "line",
    [
        poll(0),
        poll(0, 1, 2),
        poll(0, 1, migs=[uuid(16, "MIG")]),
        poll(0, 1, mig=True),
    ],
    ids=["a GPU goes", "comes", "MIG instance", "MIG mode"],
)
def test_a_poll_that_contradicts_the_snapshot_has_it_renewed(
    top: Path, host: Host, line: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["polls"].heard(poll(0, 1))
            await asyncio.sleep(0.3)
            assert not wanted(top).exists()
            FakeChild.all["polls"].heard(line)
            assert (await until(wanted(top).exists)) < EVENT
            first = wanted(top).read_text()
            for _ in range(5):  # the same again: not all the time
                FakeChild.all["polls"].heard(line)
                await asyncio.sleep(0.1)
            assert wanted(top).read_text() == first

    asyncio.run(run())


@pytest.mark.parametrize("line", [{"poll": 1}, {"poll": {}, "gpus": [[]], "migs": None}, {"poll": {}, "gpus": None}])
def test_a_poll_that_makes_no_sense_does_nothing(top: Path, host: Host, line: Any) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["polls"].heard({"migs": None, **line})
            assert (await kubelet.allocate(GPU, uuid(0)))["envs"]

    asyncio.run(run())


def test_nvml_that_is_back_has_the_node_asked(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(watch_children, "RETRY", 0.1)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            host.has(snapshot([gpu(0), gpu(1)], error={"sentence": "NVML fails", "code": 12}))
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0), uuid(1))))
            await until(lambda: FakeChild.all["polls"].does == "again", 5)  # its next start does not wait
            assert not wanted(top).exists()
            FakeChild.all["polls"].heard(poll(0, 1))
            assert (await until(wanted(top).exists)) < EVENT

    asyncio.run(run())


def test_a_gpu_whose_call_hangs_is_told_and_has_the_node_asked_once(top: Path, host: Host) -> None:
    async def run() -> None:
        state = str(top / "state")
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            FakeChild.all["polls"].mark_unwatched(f"a call of {uuid(1)} hangs", uuid(1))
            assert [*earlier.hanging(state)] == [uuid(1)]
            first = wanted(top).read_text()
            for child in FakeChild.all.values():
                child.mark_unwatched(f"a call of {uuid(1)} hangs", uuid(1))
            assert wanted(top).read_text() == first
            FakeChild.all["polls"].heard(poll(0))
            assert [*earlier.hanging(state)] == [uuid(1)]
            FakeChild.all["polls"].heard(poll(0, 1))
            assert not earlier.hanging(state)

    asyncio.run(run())


def test_nothing_is_watched_while_the_gpus_are_let_go(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            assert [one.does for one in FakeChild.all.values()] == ["begin", "begin"]
            await do(top, "release")
            host.has(snapshot([gpu(0), gpu(1), gpu(2)]))
            await until(lambda: len(kubelet.lists[GPU]) == 3)
            assert [one.does for one in FakeChild.all.values()] == ["", ""]
            await do(top, "take")
            host.has({**host.found, "looked": system.clock()})
            await until(lambda: [one.does for one in FakeChild.all.values()] == ["begin", "begin"])

    asyncio.run(run())


def test_children_follow_the_driver_and_its_gpus(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            host.has(snapshot([gpu(0), gpu(1)], notes=["another"]))
            await asyncio.sleep(0.2)
            assert FakeChild.all["events"].does == "begin"
            host.has(snapshot([gpu(0), gpu(1), gpu(2)]))
            await until(lambda: FakeChild.all["events"].does == "again")

    asyncio.run(run())


def test_children_open_nvml_anew_when_a_gpu_is_well_again(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            host.has(snapshot([gpu(0), gpu(1, problem="GPU is lost")]))
            await until(lambda: kubelet.well()[GPU] == [uuid(0)])
            assert FakeChild.all["events"].does == "begin"
            host.has(snapshot([gpu(0), gpu(1)]))
            await until(lambda: FakeChild.all["events"].does == "again")

    asyncio.run(run())
