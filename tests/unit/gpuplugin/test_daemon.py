"""The daemon between a snapshot that changes and a kubelet."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpuplugin.allocation import kubelet_view, offer
from gpuplugin.allocation.plugin_front import PluginFront
from gpuplugin.kubelet import endpoint, v1beta1
from gpuplugin.kubelet.endpoint import Endpoint
from gpuplugin.record import allocations_file
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.settings import settings
from gpuplugin.snapshot import node_requests, node_snapshot
from gpushim.containers import kubelet
from gpushim.ground.errors import GpushimError
from gpushim.inventory import procfs
from unit.gpuplugin.kubelet.fake import Kubelet, until
from unit.gpuplugin.running_daemon import GPU, Host, agent, health, running, sliced, told
from unit.gpuplugin.running_daemon import host as host
from unit.gpuplugin.running_daemon import top as top
from unit.gpuplugin.snapshot.exhausted import Exhausted
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid


def alone(settings: settings.Settings) -> PluginFront:
    """A device plugin without an agent."""
    watch = KubeletWatch(lambda: str(settings.values["kubelet-dir"]))
    return PluginFront(lambda: settings, watch, asyncio.create_task, lambda: None)


def test_resources_come_with_the_snapshot(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **{"mig-strategy": "mixed"}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            host.has(snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]))
            await until(lambda: kubelet.lists.get("nvidia.com/mig-1g.5gb") == health(uuid(16, "MIG")))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)))  # by a stream of its own
            assert (await kubelet.allocate(GPU, uuid(0)))["envs"] == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}

    asyncio.run(run())


@pytest.mark.parametrize("error", [None, GpushimError("too many", 1)])
def test_a_decision_that_takes_long_is_made_less_often(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, error: GpushimError | None
) -> None:
    plugin = alone(told(top, **{"fail-on-init-error": False}))

    async def offer(*_: Any) -> bool:
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass
        if error:
            raise error
        return True

    monkeypatch.setattr(plugin, "_offer", offer)
    assert asyncio.run(plugin._go_by(host.found, None)) >= 3.0


def test_labels_follow_the_snapshot_and_outlive_the_plugin(top: Path, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "labels"

    async def run() -> None:
        async with running(top, **{"labels-file": str(path)}):
            await until(path.exists)
            assert "nvidia.com/gpu.count=2\n" in path.read_text()
            host.has(snapshot([gpu(0)], looked=1))
            await until(lambda: "nvidia.com/gpu.count=1\n" in path.read_text())

    asyncio.run(run())
    assert path.exists()


def test_what_is_gone_is_sick_until_no_pod_has_it(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            kubelet.held[GPU] = [uuid(1)]
            host.has(snapshot([gpu(0)]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)))
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be used: the host does not have it any more"):
                await kubelet.allocate(GPU, uuid(1))
            await asyncio.sleep(0.5)  # as long as five questions: nothing comes of them
            assert uuid(1) in kubelet.lists[GPU]
            kubelet.held.clear()
            await until(lambda: kubelet.lists[GPU] == health(uuid(0)))

    asyncio.run(run())


def test_what_comes_back_is_well_again(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            host.has(snapshot([gpu(0), gpu(1, problem="XID 79")]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)))
            host.has(snapshot([], error={"sentence": "the driver is not loaded", "code": 4}))
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0), uuid(1))))
            host.has(snapshot([gpu(0), gpu(1)]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), uuid(1)))

    asyncio.run(run())


async def a_stranger(kubelet: Kubelet, devices: Any = ()) -> Endpoint:
    """Another plugin with the same resource, which kubelet reads the list of."""
    stranger = Endpoint(str(kubelet.folder), GPU, dict, dict)
    stranger.path = f"{kubelet.folder}/nvidia-gpu.sock"
    stranger.offer(devices)
    await stranger.attend()
    await until(lambda: set(kubelet.lists[GPU]) == {one["ID"] for one in devices})
    return stranger


def test_a_stranger_s_end_is_noticed_long_before_the_next_question(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(kubelet_view, "ASK", 60)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            await asyncio.sleep(1)  # the first questions are over
            stranger = await a_stranger(kubelet, [{"ID": uuid(0), "health": "Healthy"}])
            await stranger.stop()
            await until(lambda: kubelet.well().get(GPU) == [uuid(0), uuid(1)], 5)

    asyncio.run(run())


async def calm(kubelet: Kubelet, seconds: float = 0.5) -> int:
    """Wait until kubelet was asked just now, and will not be for a while; return how often it was."""
    await until(lambda: kubelet.asked)
    before = -1
    while before != kubelet.asked:
        before = kubelet.asked
        await asyncio.sleep(seconds)
    await until(lambda: kubelet.asked > before)
    return kubelet.asked


def test_who_is_alone_asks_kubelet_rarely_and_beside_a_stranger_again_and_again(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_view, "TICK", 0.05)

    async def run() -> None:
        async with running(top) as kubelet:
            before = await calm(kubelet)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.bind(str(top / "device-plugins/other.sock"))
                await until(lambda: kubelet.asked > before + 15)
            os.unlink(top / "device-plugins/other.sock")

    asyncio.run(run())


def test_the_record_has_the_pod_s_name_soon_though_kubelet_is_asked_rarely(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the turn of the other questions, which comes at longer and longer intervals, has come."""
    monkeypatch.setattr(kubelet_view, "ASK", 60)

    async def run() -> None:
        async with running(top) as kubelet:
            before = await calm(kubelet, 1.5)
            await kubelet.allocate(GPU, uuid(0))
            kubelet.held = {GPU: [uuid(0)]}
            await until(lambda: b'"confirmed"' in (top / "state/device-plugin/allocations.json").read_bytes())
            assert kubelet.asked == before

    asyncio.run(run())


def test_news_by_the_stream_of_a_plugin_that_kubelet_does_not_ask(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(endpoint, "SETTLED", 60)  # it does not find out by asking
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            stranger = await a_stranger(kubelet)
            await stranger.stop()
            await until(lambda: GPU not in kubelet.clients)
            host.has(snapshot([gpu(0), gpu(1, problem="XID 79")]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)) and GPU in kubelet.clients)
            assert (await kubelet.allocate(GPU, uuid(0)))["envs"]

    asyncio.run(run())


def test_nothing_leaves_the_list_while_kubelet_allocates_it(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(kubelet_view, "QUIET", 1.5)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            kubelet.slow = 0.8
            allocating = asyncio.create_task(kubelet.allocate(GPU, uuid(1)))
            await asyncio.sleep(0.1)
            host.has(snapshot([gpu(0)]))
            assert (await allocating)["envs"]
            await until(lambda: kubelet.lists[GPU] == health(uuid(0)))

    asyncio.run(run())


def test_settings_are_read_again(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, lambda: told(top, exclude=["0"])) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            kubelet.held[GPU] = [uuid(0)]
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: kubelet.lists[GPU] == health(uuid(1), sick=(uuid(0),)))
            await until(lambda: len(kubelet.registered) == 2)
            assert (await kubelet.allocate(GPU, uuid(1)))["envs"]
            assert kubelet.ended == 0  # it had the devices all the while

    asyncio.run(run())


def test_what_waits_is_not_decided_at_each_change_of_the_record(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances that wait write it by turns."""
    decided, decide = [], kubelet_view.KubeletView.decide

    async def counted(self: kubelet_view.KubeletView, *args: Any) -> Any:
        decided.append(time.monotonic())
        return await decide(self, *args)

    monkeypatch.setattr(kubelet_view.KubeletView, "decide", counted)

    async def run() -> None:
        async with running(top, lambda: sliced(top, 2)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            kubelet.held[GPU] = [uuid(0)]
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: kubelet.lists.get(GPU + ".shared"))
            began, path = time.monotonic(), Path(allocations_file.folder(), "other")
            for _ in range(40):
                path.touch()
                path.unlink()
                await asyncio.sleep(0.02)
            took = time.monotonic() - began
            assert sum(since > began for since in decided) <= 2 + took  # one a second

    asyncio.run(run())


def test_a_file_that_has_changed_registers_nothing_anew(top: Path, host: Host) -> None:
    news: list[bool] = []

    def changed() -> bool:
        return bool(news and news.pop())

    async def run() -> None:
        async with running(top, lambda: told(top, exclude=["0"]), changed=changed) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            news.append(True)
            await until(lambda: kubelet.lists[GPU] == health(uuid(1), sick=(uuid(0),)), 5)
            assert len(kubelet.registered) == 1

    asyncio.run(run())


def test_a_resource_that_is_no_more_is_retired(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, lambda: sliced(top, 2)) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            os.kill(os.getpid(), signal.SIGHUP)
            shared = [f"{uuid(number)}::{place}" for number in (0, 1) for place in (0, 1)]
            await until(lambda: kubelet.lists.get(GPU + ".shared") == health(*shared))
            await until(lambda: [*kubelet.clients] == [GPU + ".shared"])
            await until(lambda: not (kubelet.folder / "gpushim-gpu.sock").exists())

    asyncio.run(run())


def test_settings_that_are_wrong_change_nothing(top: Path, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> settings.Settings:
        raise GpushimError("mig-strategy is wrong", 15)

    async def run() -> None:
        async with running(top, wrong) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "the settings stay as they were: mig-strategy is wrong" in caplog.messages)
            assert (await kubelet.allocate(GPU, uuid(0)))["envs"]
            assert len(kubelet.registered) == 1

    asyncio.run(run())


def test_kubelet_moves(top: Path, host: Host) -> None:
    async def run() -> None:
        other = Kubelet(top / "k3s" / "device-plugins")
        other.folder.mkdir(parents=True)
        await other.start()
        async with running(top, lambda: told(top / "k3s")) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: other.lists.get(GPU) == health(uuid(0), uuid(1)))
            assert not (kubelet.folder / "gpushim-gpu.sock").exists()
        await other.stop()

    asyncio.run(run())


def test_kubelet_comes_up_in_the_usual_place_whatever_its_directory(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As k0s' does, after the plugin."""

    async def run() -> None:
        monkeypatch.setattr(kubelet, "USUAL", str(top / "usual"))
        async with running(top, having=told(top / "k0s")):
            await until(lambda: "kubelet does not listen at" in caplog.text)
            found = Kubelet(top / "usual" / "device-plugins")
            found.folder.mkdir(parents=True)
            await found.start()
            await until(lambda: found.lists.get(GPU) == health(uuid(0), uuid(1)))
            assert (await found.allocate(GPU, uuid(0)))["envs"]
            await found.stop()

    asyncio.run(run())


def test_what_cannot_be_refreshed_is_not_given_out(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(node_requests, "ANSWER", 0.0)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            host.has(None)
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0), uuid(1))))
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be used: there is no snapshot"):
                await kubelet.allocate(GPU, uuid(1))
            host.has(snapshot([gpu(0), gpu(1)]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), uuid(1)))

    asyncio.run(run())


def test_cdi_names_that_engines_would_not_find(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["no spec"]

    def check(*_: Any) -> None:
        for sentence in refused:
            raise GpushimError(sentence, 15)

    monkeypatch.setattr(offer, "_check_cdi", check)
    with pytest.raises(GpushimError, match="no spec"):
        asyncio.run(agent(told(top, **{"device-list-strategy": ["cdi-cri"]})).run())

    async def run() -> None:
        refused.clear()
        host.has(snapshot([gpu(0)]))
        async with running(top, **{"device-list-strategy": ["cdi-cri"]}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))
            refused.append("another's spec is in the way")
            host.has(host.found)
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0),)))
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be used: another's spec is in the way"):
                await kubelet.allocate(GPU, uuid(0))
            refused.clear()  # nothing else changes
            await until(lambda: kubelet.lists[GPU] == health(uuid(0)))

    asyncio.run(run())


def test_without_inotify_changes_are_found_by_looking(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Exhausted(-1))
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            (kubelet.folder / "gpushim-gpu.sock").unlink()
            await until(lambda: len(kubelet.registered) == 2, 3)
            host.has(snapshot([gpu(0), gpu(1, problem="XID 79")]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),)), 5)

    asyncio.run(run())


def test_a_bug_ends_the_program(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Endpoint, "attend", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(agent(told(top)).run())


NO_DRIVER = {"sentence": "the driver is not loaded", "code": 4}


UNASKED = f"NVML cannot be used (x): {procfs.UNASKED}"
UNUSABLE = [
    (snapshot([], error=NO_DRIVER), "the driver is not loaded"),
    (snapshot([gpu(0)], source="proc", notes=[UNASKED]), "health is not known: NVML cannot be used"),
]


@pytest.mark.parametrize(("found", "why"), UNUSABLE, ids=["no driver", "no NVML"])
def test_a_host_that_cannot_serve_from_the_start_is_refused(top: Path, host: Host, found: Any, why: str) -> None:
    async def run() -> None:
        host.has(found)
        await agent(settings.resolve({}, {}, {"kubelet-dir": str(top)}, "")).run()

    with pytest.raises(GpushimError, match=why):
        asyncio.run(run())


@pytest.mark.parametrize(("found", "why"), UNUSABLE, ids=["no driver", "no NVML"])
def test_or_waited_for(top: Path, host: Host, found: Any, why: str) -> None:
    async def run() -> None:
        host.has(found)
        async with running(top, **{"fail-on-init-error": False}) as kubelet:
            await asyncio.sleep(0.1)
            assert not kubelet.registered
            host.has(snapshot([gpu(0)]))
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))

    asyncio.run(run())


def test_a_snapshot_is_replaced_while_it_is_read(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(state: str, before: Any = None) -> Any:
        found = host.found
        if len(found["gpus"]) == 2:
            host.has(snapshot([gpu(0)]))
        return found, None

    async def run() -> None:
        monkeypatch.setattr(node_snapshot, "read", read)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))

    asyncio.run(run())


def test_more_than_kubelet_reads_is_no_end(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(v1beta1, "LIST_LIMIT", 200)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            host.has(snapshot([gpu(number) for number in range(8)]))
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0), uuid(1))))
            host.has(snapshot([gpu(0), gpu(1)]))
            await until(lambda: kubelet.lists[GPU] == health(uuid(0), uuid(1)))

    asyncio.run(run())


def test_what_is_gone_and_what_is_there_together_are_more_than_kubelet_reads(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v1beta1, "LIST_LIMIT", 200)

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            kubelet.held = {GPU: [uuid(0)]}
            host.has(snapshot([gpu(2), gpu(3)]))
            await until(lambda: kubelet.lists[GPU] == health(sick=(uuid(0),)))
            kubelet.held = {}
            await until(lambda: kubelet.lists[GPU] == health(uuid(2), uuid(3)))

    asyncio.run(run())
