from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.dra import explain_file, rehearsal
from gpuplugin.dra.offered import devices
from gpuplugin.matching import fitting
from gpuplugin.snapshot.node_snapshot import POD
from gpushim.ground import system
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
def test_what_prepare_refuses(requests: Any, config: Any, host: Any, answer: str, words: str) -> None:
    one = found(claim(*requests, config=[config]), snapshot=host)
    assert one["answer"] == answer
    assert words in one["why"]


@pytest.mark.parametrize(
    ("number", "of", "answer"),
    [(9, "a/big", "yes"), (9, "a/small", "no"), (9, "a", "no"), (2, "a/big", "cannot tell"), (9, "", "no")],
)
def test_a_config_counts_for_the_alternative_that_is_chosen(number: int, of: str, answer: str) -> None:
    ways = [
        {"name": "big", "deviceClassName": "gpu.nvidia.com", "count": number},
        {"name": "small", "deviceClassName": "mig.nvidia.com"},
    ]
    config = opaque("GpuConfig", *filter(None, [of]), strategy="Bogus")
    one = found(claim({"name": "a", "firstAvailable": ways}, config=[config]), snapshot=WITH_MPS)
    assert one["answer"] == answer, one["why"]


def test_the_form_of_another_version_does_not_matter() -> None:
    made = claim(exactly(), config=[{**SLICES, "requests": [{}]}, {**SLICES, "requests": 5}])
    assert found({**made, "apiVersion": "resource.k8s.io/v9"})["answer"] == "cannot tell"


@pytest.mark.parametrize("pod", ["", "10.0.0.1"])
@pytest.mark.parametrize("systemd", [True, False])
def test_what_starts_units_of_claims_is_noted_wherever_one_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, systemd: bool, pod: str
) -> None:
    monkeypatch.setattr(system, "SYSTEMD", str(tmp_path) if systemd else "/none")
    monkeypatch.setenv(POD, pod)
    shares = claim(config=[mps_config()])
    assert found(shares, snapshot=WITH_MPS)["answer"] == "yes"
    assert (f"claim c: {rehearsal.STARTER}" in notes(shares, snapshot=WITH_MPS)) is not systemd
    assert rehearsal.STARTER not in notes(claim(), snapshot=WITH_MPS)


def refused_in_any_way() -> dict[str, Any]:
    """Return a claim with as many configs, and as large ones, as there may be, none of which any device has."""
    requests = [{**exactly(), "name": name} for name in "abcd"]
    return claim(*requests, config=[mps_config(*map(str, range(100, 400)))] * 32)


@pytest.mark.usefixtures("bounded")
def test_configs_are_not_read_for_each_way() -> None:
    """There are 1680 ways, and a reading takes 30 ms at least."""
    host = snapshot([gpu(number) for number in range(8)], files=WITH_MPS["files"], driver=WITH_MPS["driver"])
    began = time.process_time()
    one = found(refused_in_any_way(), snapshot=host, offered=devices(host))
    assert (one["answer"], time.process_time() - began < 15) == ("no", True)


@pytest.mark.usefixtures("bounded")
def test_a_search_ends_when_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_file, "SECONDS", 0.5)
    monkeypatch.setattr(fitting, "STEPS", 10**12)
    host = snapshot([gpu(number) for number in range(32)])
    one = found(
        claim(exactly(count=16), constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}]), offered=devices(host)
    )
    assert (one["answer"], one["why"]) == ("cannot tell", "there are too many ways to combine devices")


def test_a_limit_above_the_memory_is_noted() -> None:
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
