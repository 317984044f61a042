from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.mps import mps
from unit.gpuplugin.dra.claimfiles import HOST, claim, exactly, found, notes, opaque
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid


def mps_config(*keys: str, limit: str = "", strategy: str = "MPS") -> dict[str, Any]:
    more: dict[str, Any] = {"defaultPerDevicePinnedMemoryLimit": dict.fromkeys(keys, "5Gi")}
    more.update({"defaultPinnedDeviceMemoryLimit": limit} if limit else {})
    return opaque("GpuConfig", strategy=strategy, **({"mpsConfig": more} if strategy == "MPS" else {}))


WITH_MPS = snapshot(
    [gpu(0), gpu(1), gpu(2, mig=True)],
    [mig(2, 0)],
    files={"compute": [{"path": "/usr/bin/nvidia-cuda-mps-control"}]},
    driver={**HOST["driver"], "root": "/"},
)
LACKING = {**WITH_MPS, "files": {}}
SLICES = opaque("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})


@pytest.mark.parametrize(
    ("requests", "config", "host", "answer", "words"),
    [
        ([], mps_config(), WITH_MPS, "yes", ""),
        ([], mps_config(), LACKING, "no", "there is no nvidia-cuda-mps-control below /;"),
        ([], SLICES, LACKING, "no", "there is no nvidia-smi below /;"),
        ([exactly(adminAccess=True)], mps_config(), LACKING, "yes", ""),
        ([], mps_config("9"), WITH_MPS, "no", '"9" is unknown in sharing.mpsConfig.default'),
        ([], mps_config(uuid(1)), WITH_MPS, "cannot tell", "it may get such devices: the driver refuses it: "),
        ([exactly(count=2)], mps_config(uuid(1)), WITH_MPS, "yes", ""),
    ],
)
def test_what_prepare_refuses(
    monkeypatch: pytest.MonkeyPatch, requests: Any, config: Any, host: Any, answer: str, words: str
) -> None:
    monkeypatch.setattr(mps, "no_starter", str)
    one = found(claim(*requests, config=[config]), snapshot=host)
    assert one["answer"] == answer
    assert words in one["why"]


def test_units_of_claims_need_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "no_starter", lambda: "nobody starts units")
    one = found(claim(config=[mps_config()]), snapshot=WITH_MPS)
    assert (one["answer"], one["why"]) == ("no", "the driver waits in vain: nobody starts units")
    assert found(claim(), snapshot=WITH_MPS)["answer"] == "yes"


def test_a_limit_above_the_memory_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "no_starter", str)
    words = f"claim c: its MPS limit of 102400Mi limits nothing, for {uuid(0)} has 40Gi"
    assert words in notes(claim(config=[mps_config(limit="100Gi")]), snapshot=WITH_MPS)
    assert "limits nothing" not in notes(claim(config=[mps_config(limit="40Gi")]), snapshot=WITH_MPS)


@pytest.mark.parametrize(
    ("driver", "end"),
    [
        ("gpu.nvidia.co", "gpu.nvidia.co, which is not this one; is gpu.nvidia.com meant?"),
        ("gpu.amd.com", "gpu.amd.com, which is not this one"),
    ],
)
def test_configs_for_other_drivers_are_noted(driver: str, end: str) -> None:
    config = {"opaque": {"driver": driver, "parameters": {"x": 1}}}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}}
    lines = notes(claim(config=[config]), {**made, "spec": {"config": [config]}}).split("\n")
    ends = f"a config is for the driver {end}"
    assert [f"claim c: {ends}", f"class x: {ends}"] == [one for one in lines if "not this one" in one]
    assert found(claim(config=[config]))["answer"] == "yes"
