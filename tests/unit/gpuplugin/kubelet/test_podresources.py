"""Who has what, as kubelet's pod-resources API says it: devices of plugins, and of claims."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.kubelet import podresources
from gpushim.containers.kubelet import Claim
from unit.gpuplugin.kubelet.fake import Kubelet

GPU = "nvidia.com/gpu"
# A claim for two devices, of two drivers.
CLAIMED = {
    "claim_name": "mine",
    "claim_namespace": "ns",
    "claim_resources": [
        {
            "driver_name": "gpu.nvidia.com",
            "pool_name": "node",
            "device_name": "gpu-0",
            "cdi_devices": [{"name": "nvidia.com/gpu=0"}, {"name": "x.com/y=z"}],
        },
        {"driver_name": "net.example.com", "pool_name": "node", "device_name": "eth0"},
    ],
}


@pytest.fixture
def kubelet(folder: Path) -> Kubelet:
    (folder / "device-plugins").mkdir()
    return Kubelet(folder / "device-plugins")


def ask(kubelet: Kubelet, question: Any) -> Any:
    async def asked() -> Any:
        await kubelet.start()
        try:
            return await question(str(kubelet.folder.parent))
        finally:
            await kubelet.stop()

    return asyncio.run(asked())


def test_devices_and_claims(kubelet: Kubelet) -> None:
    kubelet.held, kubelet.claimed = {GPU: ["a", "b::1"]}, [CLAIMED]
    found = ask(kubelet, podresources.listed)
    assert found.devices == [
        {"namespace": "", "pod": "pod", "container": "main", "resource": GPU, "devices": ["a", "b::1"]}
    ]
    assert found.held() == {GPU: {"a": "pod /pod", "b::1": "pod /pod"}}
    assert found.claims == [
        Claim("ns", "mine", "gpu.nvidia.com", "node", "gpu-0", ("nvidia.com/gpu=0", "x.com/y=z"), "pod", "main"),
        Claim("ns", "mine", "net.example.com", "node", "eth0", (), "pod", "main"),
    ]


def test_what_it_would_give_out(kubelet: Kubelet) -> None:
    kubelet.lists = {GPU: {"a": "Healthy", "b": "Unhealthy", "c": "Healthy"}}
    assert ask(kubelet, podresources.allocatable) == {GPU: {"a", "c"}}


def test_no_kubelet_says_nothing(tmp_path: Path) -> None:
    assert asyncio.run(podresources.listed(str(tmp_path))) is None
