"""Who else gives out GPUs, and what follows."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.allocation import allocators
from gpuplugin.allocation.allocators import Allocator, Allocators
from gpuplugin.kubelet.plugins import DRIVER, Plugin
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpushim.containers import kubelet
from gpushim.ground import system
from unit.gpuplugin.kubelet.registrar import driver
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"
NODE = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
HERE = Plugin("/k/plugins_registry/a.sock", DRIVER, "gpu.nvidia.com")


def found(*plugins: Plugin) -> list[Allocator]:
    return [*allocators.drivers(plugins, kubelet.DRIVERS)]


def test_nvidias_driver_may_give_any() -> None:
    (one,) = found(HERE)
    assert one.gpus is None
    assert "gpu.nvidia.com, which listens at /k/plugins_registry/a.sock" in one.text


def test_others_give_none() -> None:
    others = [HERE._replace(name=name) for name in ("compute-domain.nvidia.com", "net.example.com")]
    assert found(*others, HERE._replace(kind="CSIPlugin"), HERE._replace(kind="", name="")) == []


def alone(folder: str = "") -> Any:
    """What looks at others beside no resource of our own."""
    registry = SimpleNamespace(served={}, instances=SimpleNamespace(others=bool), watch=KubeletWatch(str))
    settings = SimpleNamespace(values={"other-givers": allocators.REFUSE, "kubelet-dir": folder})
    return Allocators(registry, lambda: settings, list)  # type: ignore[arg-type, return-value]


def test_of_who_ends_while_kubelet_says_nothing_a_driver_counts(tmp_path: Path) -> None:
    """What it gave last is not known."""
    looks = [[HERE, HERE._replace(kind="DevicePlugin")], [HERE], []]

    async def look(folder: str) -> list[Plugin]:
        return looks.pop(0)

    async def seen() -> Any:
        of = alone(str(tmp_path))
        of._plugins = SimpleNamespace(look=look)
        while looks:
            await of._look()
        return of._listeners

    assert asyncio.run(seen()) == [HERE]


@pytest.mark.parametrize("gives", [True, False])
def test_a_driver_whose_claim_has_a_gpu_gives_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: bool
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    held = {"claim d/c of x.example.com": rows.claim(rows.claim_device(uuid(0)), driver="x.example.com")}
    rows.save(rows.record(claims=held if gives else {}, boot=system.boot()))

    async def told() -> Any:
        of = alone()
        of._listeners = [HERE._replace(name="x.example.com")]
        return of.added({}, NODE), of.clauses

    reasons, givers = asyncio.run(told())
    assert bool(givers) == gives
    assert [*reasons] == [uuid(0), uuid(1), uuid(16, "MIG")] * gives
    for row in reasons.values():
        assert row[0].when == pytest.approx(time.time(), abs=10)


def test_claims_that_kubelet_has_kept_tell_of_a_driver_too(folder: Path) -> None:
    device = {"PoolName": "node", "DeviceName": uuid(0).lower(), "CDIDeviceIDs": []}
    entry = {
        "Namespace": "ns",
        "ClaimName": "c",
        "PodUIDs": [],
        "DriverState": {"x.example.com": {"Devices": [device]}},
    }

    async def asked() -> list[list[str]]:
        async with driver(folder / "plugins_registry/a", "x.example.com"):
            before = await allocators.beside(str(folder), NODE)
            (folder / kubelet.CLAIMS).write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": [entry]})}))
            return [before, await allocators.beside(str(folder), NODE)]

    before, (text,) = asyncio.run(asked())
    assert not before
    assert "the DRA driver x.example.com, which listens at" in text


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({GPU: [uuid(0)]}, []),
        ({GPU: [uuid(0), "0"]}, [None]),
        ({GPU: [f"{uuid(0)}::0"]}, [{uuid(0)}]),
        ({"x.com/gpu": [f"{uuid(0)}-7", f"{uuid(1)}-7"]}, [{uuid(0), uuid(1)}]),
        ({"x.com/gpu": ["0"], "x.com/net": ["a"]}, []),
        ({"x.com/gpu": [uuid(77)]}, []),
    ],
)
def test_other_device_plugins(theirs: dict[str, list[str]], expected: list[set[str] | None]) -> None:
    others = [*allocators.plugins(theirs, {GPU: [uuid(0), uuid(1)]}, {uuid(0), uuid(1)})]
    assert [one.gpus for one in others] == expected
