"""The daemon's own socket: its state, and GPUs that are let go and taken, beside a kubelet."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import grpc.aio
import pytest

from gpuplugin.control import letting_go
from gpuplugin.processes import moments, spawn
from gpuplugin.settings import settings
from gpuplugin.snapshot import node_snapshot
from gpuplugin.snapshot.release import PROBLEM
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import lock
from unit.gpuplugin.control.client import do
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.running_daemon import GONE, GPU, FakeChild, Host, health, host, running, sliced, top, wanted
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

__all__ = ["host", "top"]
WELL, SICK = health(uuid(0), uuid(1)), health(sick=(uuid(0), uuid(1)))


def test_release_and_take(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            kubelet.held[GPU] = [uuid(1)]
            FakeChild.all["events"].heard({"watching": [uuid(0), uuid(1)], "unwatched": {}, "unsupported": []})
            assert (await do(top, "status"))["watched"]["watching"] == [uuid(0), uuid(1)]
            answer = await do(top, "release")
            assert (answer["closed"], answer["profile"]) == (True, None)
            assert answer["watched"] == {"watching": [], "unwatched": {}, "unsupported": []}
            assert [one["devices"] for one in answer["pods"]] == [[uuid(1)]]
            await until(lambda: kubelet.lists[GPU] == SICK)
            with pytest.raises(grpc.aio.AioRpcError, match=f"cannot be used: {PROBLEM}"):
                await kubelet.allocate(GPU, uuid(0))
            assert (await do(top, "take"))["released"] is None
            await until(wanted(top).exists)
            assert kubelet.lists[GPU] == SICK  # the driver may be another since, of which the host was not asked yet
            host.has({**host.found, "looked": system.clock()})
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_nothing_is_asked_for_or_given_out_meanwhile(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(moments, "EACH", 0.05)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await do(top, "release")
            host.has(snapshot([gpu(0)]))  # another process has refreshed
            await until(lambda: kubelet.lists[GPU] == SICK)
            host.has(None)
            await asyncio.sleep(0.5)
            assert not wanted(top).exists()
            await do(top, "take")
            await until(wanted(top).exists)

    asyncio.run(run())


def test_what_is_let_go_is_said_once(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        monkeypatch.setattr(moments, "EACH", 0.05)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await do(top, "release")
            host.has(snapshot([gpu(0), gpu(1), gpu(2)]))  # which is offered
            await until(lambda: uuid(2) in kubelet.lists[GPU])
        said = [one.getMessage() for one in caplog.records if uuid(0) in one.getMessage()]
        assert said == [f"{uuid(0)} of {GPU} is not given out: {PROBLEM}"]

    asyncio.run(run())


def test_a_refresh_that_runs_is_waited_for(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            with lock.held(f"{top}/state/lock"):
                (top / "state/device-plugin/released").touch()
                await until(lambda: kubelet.lists[GPU] == SICK)
                assert not (await do(top, "status"))["closed"]
            assert (await do(top, "release"))["closed"]

    asyncio.run(run())


def test_a_script_lets_go_and_a_restart_keeps_to_it(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            (top / "state/device-plugin/released").touch()
            await until(lambda: kubelet.lists[GPU] == SICK)
        monkeypatch.setattr(node_snapshot, "read", lambda state, before=None: (host.found, GONE))
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == SICK)
            assert (await do(top, "status"))["released"]
            monkeypatch.setattr(node_snapshot, "read", lambda state, before=None: (host.found, None))
            (top / "state/device-plugin/released").unlink()
            await until(wanted(top).exists)
            host.has({**host.found, "looked": system.clock()})
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_a_node_without_a_driver_waits_while_it_is_let_go(top: Path, host: Host) -> None:
    async def run() -> None:
        (top / "state/device-plugin").mkdir(mode=0o700)
        (top / "state/device-plugin/released").touch()
        host.has(snapshot([], error={"sentence": "the driver is not loaded", "code": 4}))
        async with running(top) as kubelet:
            await until((top / "state/device-plugin.sock").exists)
            await do(top, "take")
            host.has(snapshot([gpu(0), gpu(1)], looked=system.clock()))
            await until(lambda: kubelet.lists.get(GPU) == WELL)

    asyncio.run(run())


def test_what_hangs_is_said(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> None:
        await asyncio.sleep(100)

    async def run() -> None:
        monkeypatch.setattr(letting_go, "CLOSING", 0.1)
        monkeypatch.setattr(spawn, "wait_for_all", never)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            assert "is in the driver and does not end" in (await do(top, "release"))["error"]
            assert not (await do(top, "status"))["closed"]
            await do(top, "take")
            await asyncio.sleep(0.3)
            assert kubelet.lists[GPU] == SICK  # opened again, it would hang beside the other

    asyncio.run(run())


def test_status(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            await kubelet.allocate(GPU, uuid(1))
            kubelet.held[GPU] = [uuid(1)]
            host.has(snapshot([gpu(0, problem="it is stuck"), gpu(1)]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(1), sick=(uuid(0),)))
            answer = await do(top, "status")
            ((name, devices),) = [(one["name"], one["devices"]) for one in answer["resources"]]
            assert (name, [one["problem"] for one in devices]) == (GPU, ["it is stuck", ""])
            assert [one["since"] and time.time() - one["since"] < 60 for one in devices] == [True, None]
            assert answer["kubelet_dir"] == str(top)
            assert [(one["index"], one["healthy"], one["held"]) for one in devices] == [
                ("0", False, 0),
                ("1", True, 1),
            ]
            (allocated,) = answer["resources"][0]["allocated"]
            assert allocated["devices"] == [uuid(1)]
            assert time.time() - allocated["at"] < 60
            assert answer["pods"] == [
                {"namespace": "", "pod": "pod", "container": "main", "resource": GPU, "devices": [uuid(1)]}
            ]

    asyncio.run(run())


def test_settings_that_are_wrong_are_in_the_status(top: Path, host: Host) -> None:
    def wrong() -> settings.Settings:
        raise GpushimError("mig-strategy is wrong", 15)

    async def run() -> None:
        async with running(top, wrong) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            os.kill(os.getpid(), signal.SIGHUP)
            while "the settings stay as they were: mig-strategy is wrong" not in (await do(top, "status"))["notes"]:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_labels_that_cannot_be_written_are_in_the_status(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **{"labels-file": "/gone/gfd"}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            while not any("/gone/gfd: its directory is" in one for one in (await do(top, "status"))["notes"]):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_the_state_of_very_many_replicas_keeps_nobody_waiting(top: Path, host: Host) -> None:
    async def run() -> None:
        host.has(snapshot([gpu(index) for index in range(16)]))
        async with running(top, having=sliced(top, 1000)) as kubelet:
            await until(lambda: len(kubelet.lists.get(GPU + ".shared", ())) == 16000, 20)
            longest, asked = 0.0, asyncio.create_task(do(top, "status"))
            while not asked.done():
                began = time.monotonic()
                await asyncio.sleep(0)
                longest = max(longest, time.monotonic() - began)
            (resource,) = asked.result()["resources"]
            assert [one["replicas"] for one in resource["devices"]] == [1000] * 16
            assert longest < 0.5

    asyncio.run(run())


def test_a_mig_layout_that_cannot_be_had_is_in_the_status(top: Path, host: Host) -> None:
    name = top / "layout"
    name.write_text("two words")

    async def run() -> None:
        async with running(top, **{"mig-layout-file": str(name)}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            while not any(f"{name} is not one word" in note for note in (await do(top, "status"))["notes"]):
                await asyncio.sleep(0.01)
            name.unlink()
            while any("is not one word" in note for note in (await do(top, "status"))["notes"]):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))
