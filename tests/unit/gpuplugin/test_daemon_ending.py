"""kubelet takes a pod's devices for free when it is terminated, moments before the pod's cgroup is empty."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from pathlib import Path

import grpc.aio
import pytest

from gpuplugin.kubelet import cgroups
from gpuplugin.record import allocations_file, kubelet_watch
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.record_form import CONFIRMED
from gpuplugin.record.transitions import list_allocations
from gpushim.containers import kubelet as kubelet_files
from gpushim.paths import lock
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.running_daemon import GPU, Host, health, host, running, top
from unit.gpuplugin.snapshots import uuid

__all__ = ["host", "top"]
POD, PATIENCE = "0a1b2c3d-0000-4000-8000-000000000001", 1.0


def in_the_record(_plugins: Path) -> None:
    """Have the record know whose the devices are, as kubelet says a moment after Allocate."""
    file = AllocationsFile()
    with file.locked() as record:
        assert record
        for *_, allocation in list_allocations(record):
            allocation["pod"], allocation["state"], allocation["uid"] = "pod d/p", CONFIRMED, POD
        file.write(record)


def in_kubelets_checkpoint(plugins: Path) -> None:
    """Have kubelet alone know it, as when the pod is deleted within seconds of its Allocate."""
    entry = {
        "PodUID": POD,
        "ContainerName": "c",
        "ResourceName": GPU,
        "DeviceIDs": {"-1": [uuid(0)]},
        "AllocResp": "",
    }
    document = {"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {GPU: [uuid(0), uuid(1)]}}, "Checksum": 1}
    (plugins / kubelet_files.CHECKPOINT).write_text(json.dumps(document))


@pytest.mark.parametrize("known", [in_the_record, in_kubelets_checkpoint])
@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_pod_had_whose_process_ends_soon_is_given_to_the_next(
    top: Path, host: Host, monkeypatch: pytest.MonkeyPatch, hangs: bool, known: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(kubelet_watch, "YOUNG", 0.0)  # kubelet has run for a while

    async def run() -> None:
        async with running(top) as kubelet:
            await until(lambda: kubelet.lists.get(GPU) == health(uuid(0), uuid(1)))
            await kubelet.allocate(GPU, uuid(0))
            known(top / "device-plugins")
            looks: list[bool] = []  # whether the lock was free at each

            def left(uids: Collection[str]) -> frozenset[str]:
                if uids:
                    looks.append(not lock.is_held(f"{allocations_file.folder()}/{allocations_file.LOCK}"))
                return frozenset(uids) if hangs or len(looks) < 4 else frozenset()

            monkeypatch.setattr(cgroups, "running", left)
            monkeypatch.setattr(cgroups, "PATIENCE", PATIENCE)
            second = asyncio.create_task(kubelet.allocate(GPU, uuid(0)))
            await until(lambda: bool(looks))
            await kubelet.allocate(GPU, uuid(1))  # meanwhile
            assert not second.done()
            if hangs:
                with pytest.raises(grpc.aio.AioRpcError, match="of which a process still runs"):
                    await second
            else:
                assert (await second)["envs"] == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}
            assert all(looks[:3])
            (top / "device-plugins" / kubelet_files.CHECKPOINT).unlink(missing_ok=True)

    asyncio.run(run())
