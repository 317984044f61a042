"""The daemon between a snapshot that changes and a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc.aio
import pytest

from gpuplugin import daemon, endpoint, settings, v1beta1
from gpuplugin.endpoint import Endpoint
from gpuplugin.refresh import Refresh
from gpushim.errors import GpushimError
from gpushim.inventory import ensure
from unit.gpuplugin.kubelet import Kubelet, until
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"


class Host:
    """A host whose snapshot a test changes."""

    def __init__(self, state: Path) -> None:
        self._path = state / "inventory.json"
        self.has(snapshot([gpu(0), gpu(1)]))

    def has(self, found: Any) -> None:
        """Have another snapshot."""
        self.found = found
        (self._path.parent / "new").write_text("")
        os.replace(self._path.parent / "new", self._path)


@pytest.fixture
def top() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kd", dir="/tmp"))
    (path / "device-plugins").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def host(top: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    (top / "state").mkdir()
    host = Host(top / "state")
    monkeypatch.setenv("GPUSHIM_STATE", str(top / "state"))
    monkeypatch.setenv("GPUSHIM_CONFIG", str(top / "config.toml"))
    monkeypatch.setattr(ensure, "read", lambda config, state: host.found)
    for name in ("ASK", "TICK", "QUIET"):
        monkeypatch.setattr(daemon, name, 0.1)
    monkeypatch.setattr(endpoint, "SETTLED", 0.1)
    return host


@contextlib.asynccontextmanager
async def running(top: Path, reread: Any = None, **values: Any) -> AsyncIterator[Kubelet]:
    """A kubelet and the daemon, which a signal ends."""
    found = settings.resolve({}, {}, {"kubelet-dir": str(top), **values}, "")
    kubelet = Kubelet(top / "device-plugins")
    await kubelet.start()
    task = asyncio.create_task(daemon.Plugin(found, reread).run())
    try:
        yield kubelet
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 5)
        await kubelet.stop()
        assert not list((top / "device-plugins").iterdir())


def health(*well: str, sick: tuple[str, ...] = ()) -> dict[str, str]:
    return {**dict.fromkeys(well, "Healthy"), **dict.fromkeys(sick, "Unhealthy")}


def test_resources_come_with_the_snapshot(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top, **{"mig-strategy": "mixed"}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            host.has(snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]))
            await until(lambda: kubelet.lists.get("nvidia.com/mig-1g.5gb") == health(uuid(16, "MIG")))
            assert kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),))
            assert (await kubelet.allocate(GPU, uuid(0)))["envs"] == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}

    asyncio.run(run())


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


def test_a_stranger_registers_the_same_and_dies(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            stranger = Endpoint(str(kubelet.folder), GPU, dict, dict)
            stranger.path = f"{kubelet.folder}/nvidia-gpu.sock"
            await stranger.attend()
            await until(lambda: len(kubelet.registered) == 2 and kubelet.lists[GPU] == {})
            await stranger.stop()
            await until(lambda: kubelet.well().get(GPU) == [uuid(0), uuid(1)])

    asyncio.run(run())


NO_DRIVER = {"sentence": "the driver is not loaded", "code": 4}


def test_a_host_without_a_driver_is_refused(top: Path, host: Host) -> None:
    async def run() -> None:
        host.has(snapshot([], error=NO_DRIVER))
        await daemon.Plugin(settings.resolve({}, {}, {"kubelet-dir": str(top)}, "")).run()

    with pytest.raises(GpushimError, match="the driver is not loaded"):
        asyncio.run(run())


def test_or_waited_for(top: Path, host: Host) -> None:
    async def run() -> None:
        host.has(snapshot([], error=NO_DRIVER))
        async with running(top, **{"fail-on-init-error": False}) as kubelet:
            await asyncio.sleep(0.1)
            assert not kubelet.registered
            host.has(snapshot([gpu(0)]))
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))

    asyncio.run(run())


def test_a_snapshot_is_replaced_while_it_is_read(top: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(config: str, state: str) -> Any:
        found = host.found
        if len(found["gpus"]) == 2:
            host.has(snapshot([gpu(0)]))
        return found

    async def run() -> None:
        monkeypatch.setattr(ensure, "read", read)
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))

    asyncio.run(run())


def test_a_failure_is_past_when_another_process_has_refreshed(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = []

    def need(refresh: Refresh) -> None:
        troubles.append(refresh.trouble)
        refresh.trouble = GpushimError("NVML does not answer")

    async def run() -> None:
        host.has(None)
        async with running(top, **{"fail-on-init-error": False}) as kubelet:
            await until(lambda: troubles)
            host.has(snapshot([gpu(0)]))
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0)))
            troubles.clear()
            host.has(None)
            await until(lambda: troubles)
            assert troubles[0] is None

    monkeypatch.setattr(Refresh, "need", need)
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


def test_settings_are_read_again(top: Path, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    wrong = GpushimError("mig-strategy is wrong")
    fewer = settings.resolve({}, {}, {"kubelet-dir": str(top), "exclude": ["1"]}, "")

    async def run() -> None:
        async with running(top, Mock(side_effect=[wrong, fewer])) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "the settings stay as they were: mig-strategy is wrong" in caplog.messages)
            assert kubelet.lists[GPU] == health(uuid(0), uuid(1))
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: len(kubelet.registered) == 2 and kubelet.lists[GPU] == health(uuid(0)))

    asyncio.run(run())
