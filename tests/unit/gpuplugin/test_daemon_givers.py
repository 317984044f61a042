"""The daemon beside somebody else who gives out the same GPUs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc.aio
import pytest

from gpuplugin.allocation import allocators
from gpuplugin.kubelet import podresources
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.grants import grant_claim
from gpushim.containers import kubelet as files
from gpushim.ground import system
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.kubelet.registrar import driver
from unit.gpuplugin.record import rows
from unit.gpuplugin.running_daemon import GPU, Host, health, host, running, top
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

__all__ = ["host", "top"]
SICK, WELL = health(sick=(uuid(0), uuid(1))), health(uuid(0), uuid(1))
CLAIMED = {
    "claim_name": "mine",
    "claim_namespace": "ns",
    "claim_resources": [{"driver_name": "gpu.nvidia.com", "pool_name": "n", "device_name": "gpu-0"}],
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK", "SOON"):
        monkeypatch.setattr(allocators, name, 0.1)
    monkeypatch.setattr(podresources, "SETTLED", 0.1)


def promised(folder: Path, *devices: str) -> None:
    """Write what kubelet keeps of claims."""
    saved = [{"PoolName": "n", "DeviceName": one, "CDIDeviceIDs": []} for one in devices]
    state = {"gpu.nvidia.com": {"Devices": saved}}
    entry = {
        "ClaimUID": "c", "ClaimName": "mine", "Namespace": "ns", "PodUIDs": {"u": {}}, "DriverState": state,
    }  # fmt: skip
    inner = json.dumps({"ClaimInfoStateList": [entry] if devices else []})
    (folder / "new").write_text(json.dumps({"Data": inner, "Checksum": 0}))
    (folder / "new").replace(folder / files.CLAIMS)


def test_a_driver_that_was_there_first(top: Path, host: Host) -> None:
    async def run() -> None:
        async with driver(top / "plugins_registry/x.sock"), running(top) as kubelet:
            await until(lambda: kubelet.registered)
            await until(lambda: kubelet.lists.get(GPU))
            assert kubelet.lists[GPU] == SICK
            with pytest.raises(grpc.aio.AioRpcError, match=r"gpu\.nvidia\.com, which listens at .*other-givers"):
                await kubelet.allocate(GPU, uuid(0))

    asyncio.run(run())


def test_a_driver_that_comes_and_goes(top: Path, host: Host) -> None:
    (top / "plugins_registry").mkdir()

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            async with driver(top / "plugins_registry/x.sock"):
                await until(lambda: kubelet.lists[GPU] == SICK)
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_what_a_claim_has_waits_until_kubelet_lists_it_no_more(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            async with driver(top / "plugins_registry/x.sock"):
                kubelet.claimed = [CLAIMED]
                await until(lambda: kubelet.lists[GPU] == SICK)
            await until(lambda: kubelet.lists[GPU] == health(uuid(1), sick=(uuid(0),)))
            with pytest.raises(
                grpc.aio.AioRpcError,
                match=r"cannot be used: claim ns/mine of gpu\.nvidia\.com has it; a pod",
            ):
                await kubelet.allocate(GPU, uuid(0))
            kubelet.claimed.clear()
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_what_kubelet_has_kept_of_a_claim_counts_as_well(top: Path, host: Host) -> None:
    promised(top, "gpu-1")

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU))
            assert kubelet.lists[GPU] == health(uuid(0), sick=(uuid(1),))
            promised(top)
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


@pytest.mark.parametrize(("gives", "sick"), [(uuid(0), uuid(0)), (uuid(16, "MIG"), uuid(1))])
def test_what_the_record_has_of_a_claim_is_not_offered(top: Path, host: Host, gives: str, sick: str) -> None:
    """Though kubelet says nothing of it; a GPU in MIG mode is offered as a whole."""
    host.has(snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]))

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            file, claim = AllocationsFile(), rows.claim(rows.claim_device(gives, sick), since=system.clock())
            with file.locked() as record:
                file.write(grant_claim(file.current(record), "u", claim))
            await until(lambda: kubelet.lists[GPU][sick] == "Unhealthy")
            with file.locked() as record:
                file.write({**file.current(record), "claims": {}})
            await until(lambda: kubelet.lists[GPU] == WELL)

    asyncio.run(run())


def test_serve_goes_on_and_says_so(top: Path, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with driver(top / "plugins_registry/x.sock"), running(top, **{"other-givers": "serve"}) as kubelet:
            await until(lambda: kubelet.lists.get(GPU))
            assert kubelet.lists[GPU] == WELL
            await until(lambda: "it is served all the same" in caplog.text)

    asyncio.run(run())
    assert caplog.text.count("it is served all the same") == 1


def test_another_plugin_with_the_same_gpus(top: Path, host: Host) -> None:
    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == WELL)
            async with driver(top / "device-plugins/nvidia.sock", "x.com/gpu", "DevicePlugin"):
                kubelet.lists["x.com/gpu"] = health(f"{uuid(0)}-1")
                await until(lambda: kubelet.lists[GPU] == health(uuid(1), sick=(uuid(0),)))
                kubelet.lists["x.com/gpu"] = {}
                await until(lambda: kubelet.lists[GPU] == WELL)
            (top / "device-plugins/nvidia.sock").unlink()

    asyncio.run(run())
