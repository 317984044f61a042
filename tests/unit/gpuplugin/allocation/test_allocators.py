"""Who else gives out GPUs, and what follows."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gpuplugin.allocation import allocators, offer
from gpuplugin.allocation.allocators import Allocator, Allocators
from gpuplugin.devices import changes
from gpuplugin.kubelet import podresources
from gpuplugin.kubelet.plugins import DRIVER, Plugin
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.record import kubelet_state
from gpuplugin.record.kubelet_watch import KubeletWatch
from gpuplugin.settings import resources
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from unit.gpuplugin.kubelet.registrar import driver
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU = "nvidia.com/gpu"
NODE = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
HERE = Plugin("/k/plugins_registry/a.sock", DRIVER, "gpu.nvidia.com")


def claim(device: str = "gpu-0", driver: str = "gpu.nvidia.com") -> Claim:
    return Claim("ns", "c", driver, "node", device, (), "pod", "main")


def found(plugins: list[Plugin], *held: Claim) -> list[Allocator]:
    return [*allocators.drivers(plugins, allocators.relevant(held, NODE), NODE)]


def test_nvidias_driver_may_give_any() -> None:
    (one,) = found([HERE])
    assert one.gpus is None
    assert one.by
    assert "gpu.nvidia.com, which listens at /k/plugins_registry/a.sock" in one.text


@pytest.mark.parametrize("name", ["compute-domain.nvidia.com", "net.example.com", "gpu.example.com"])
def test_other_drivers_give_none(name: str) -> None:
    assert found([HERE._replace(name=name)], claim(driver=name)) == []


def test_claims_of_others_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "CLAIMS", 3)
    others = [claim(f"nic-{number}", "net.example.com") for number in range(9)]
    assert [one.gpus for one in found([], *others, claim())] == [frozenset({uuid(0)})]


def test_a_plugin_that_is_no_driver_gives_none() -> None:
    assert found([HERE._replace(kind="CSIPlugin"), HERE._replace(kind="", name="")]) == []


def test_a_driver_whose_claim_has_a_gpu_gives_all() -> None:
    other = claim(uuid(0).lower(), "x.example.com")
    has, gives = found([HERE._replace(name="x.example.com")], other)
    assert has.gpus == frozenset({uuid(0)})
    assert gives.gpus is None
    assert has.text == "claim ns/c of x.example.com has it, for pod ns/pod"


def test_a_claim_is_named_as_the_record_names_it_however_long_that_is() -> None:
    """Else one device has two sentences about one claim, as `_add_problem` joins them."""
    one = claim()._replace(
        namespace="machine-learning", name="training-7d9f8b6c5d-x2x7q-gpu-claim-for-training-8vz5k"
    )
    (has,) = found([], one)
    named = kubelet_state.name_claim(one.namespace, one.name, one.driver)
    units = resources.units(NODE)
    settled = changes.settled({}, {GPU: [units[uuid(0)]]}, {changes.CLAIM: {uuid(0): named}}, units)
    (device,) = settled.listed[GPU]
    assert offer._add_problem(device, has.text).problem == f"{named} has it, for pod machine-learning/pod"


def test_a_name_of_a_damaged_file_does_not_reach_a_terminal() -> None:
    (has,) = found([], claim()._replace(name="c\x1b[2J", pod="p\n"))
    assert has.text == r"claim ns/c\x1b[2J of gpu.nvidia.com has it, for pod ns/p\n"


def test_a_claim_that_cannot_be_told_may_have_any() -> None:
    (one,) = found([], claim("gpu-7"))
    assert one.gpus is None
    assert "may have it" in one.text


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


@pytest.mark.parametrize("recorded", [False, True])
def test_kubelet_is_asked_for_claims_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """A question costs both sides more than all else at rest; once it was answered that there are none."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    rows.save(rows.record(claims={"u": rows.claim(rows.claim_device(uuid(0)))} if recorded else {}))
    listed = AsyncMock(return_value=Listed([], []))
    monkeypatch.setattr(podresources, "listed", listed)
    monkeypatch.setattr(podresources, "answers", lambda _: True)

    async def look() -> None:
        of = alone(str(tmp_path))
        for _ in range(3):
            assert await of._hear(str(tmp_path), [])

    asyncio.run(look())
    assert listed.await_count == (3 if recorded else 1)


def test_people_are_told_since_when() -> None:
    async def told() -> Any:
        of = alone()
        of._listed = [claim()]
        return of.added({}, NODE), of.state

    reasons, state = asyncio.run(told())
    ((_, [reason]),) = reasons.items()
    assert ([row["device"] for row in state["claims"]], state["givers"]) == (["gpu-0"], [])
    assert reason.when == pytest.approx(time.time(), abs=10)


def test_an_administrators_claim_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet lists it as any other; gpushim's own driver has written down what it is."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    device = {**rows.claim_device(uuid(0)), "device": "gpu-0"}

    async def reasons(admin: bool) -> Any:
        of = alone()
        of._listed = [claim()]
        row = rows.claim({**device, "admin": admin}, namespace="ns")  # type: ignore[typeddict-item]
        rows.save(rows.record(claims={"u": row}))
        return of.added({}, NODE)

    assert not asyncio.run(reasons(True))
    assert [*asyncio.run(reasons(False))] == [uuid(0)]


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
