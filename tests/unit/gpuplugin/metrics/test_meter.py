"""Figures of simulated GPUs, by a real child, for who asks for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpuplugin.metrics import meter, readings
from gpuplugin.metrics.meter import Meter
from gpuplugin.processes import child
from unit.gpuplugin import watched
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.watched import host

__all__ = ["host"]
SECONDS = 15.0
SEES = readings.can_see_processes()
TOP = Path(__file__).parents[4]


def snapshot(host: fakehost.Host) -> Any:
    return {**watched.snapshot(host), "platform": "native", "stamp": {"module": "1", "gpus": {}}}


def metering(
    host: fakehost.Host, test: Callable[[Meter], Awaitable[None]], held: Callable[[], bool] = lambda: False
) -> None:
    async def run() -> None:
        one = Meter(asyncio.ensure_future, held)
        one.look(snapshot(host))
        try:
            await test(one)
        finally:
            await one.stop(patient=True)

    asyncio.run(run())


def running(one: Meter) -> int:
    """Return the child's process, 0 for none."""
    return one._child.pid


def own(one: Meter, host: fakehost.Host, gpu: int) -> dict[str, float]:
    return one.readings()[host.gpus[gpu].uuid].own


def test_figures_are_those_of_the_gpu(host: fakehost.Host) -> None:
    host.figure(0, sm_clock=1410, power=61234, memory_used=5 << 30, memory_reserved=1 << 30, throttle=4)
    host.figure(0, ecc_uncorrected_aggregate=2, processes=3, graphics_processes=5)

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        found = own(one, host, 0)
        assert (found["sm_clock"], found["power"], found["throttle"]) == (1410, 61234, 4)
        assert (found["memory_total"], found["memory_free"], found["memory_used"]) == (40 << 30, 34 << 30, 5 << 30)
        assert (found["ecc uncorrected aggregate"], found.get("processes")) == (2, 5 if SEES else None)
        assert "mem_clock" not in found
        assert "sm_clock" not in own(one, host, 1)
        assert all(known.up and known.age is not None for known in one.readings().values())

    metering(host, test)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ],
)
def test_an_older_driver_is_asked_in_its_way(host: fakehost.Host, function: str) -> None:
    host.figure(0, temperature=41, throttle=8)
    host.lack(function, code=13)

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        assert (own(one, host, 0)["temperature"], own(one, host, 0)["throttle"]) == (41, 8)

    metering(host, test)


def test_a_mig_instance_has_its_own(tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path / "host"), [{"mig": ["3g.20gb", "1g.5gb"]}])
    first = host.gpus[0].mig[0]
    host.figure(0, gpu_utilization=50, memory_utilization=50)
    host.figure(0, gi=first.gi, memory_used=1 << 30, processes=2)

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        known = one.readings()[host.gpus[0].uuid]
        its = {"memory_total": 20 << 30, "memory_free": 19 << 30, "memory_used": 1 << 30}
        its.update({"processes": 2} if SEES else {})
        assert known.migs[first.uuid] == its
        assert len(known.migs) == 2
        assert "gpu_utilization" not in known.own

    metering(host, test)


def test_processes_are_not_told_where_process_ids_are_others() -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]\nfrom gpuplugin.metrics import readings\n"
    code += "print(readings.can_see_processes())"
    command = ["/usr/bin/unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable]
    command += ["-c", code, *(str(TOP / name) for name in ("plugin", "shim"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_gpus_are_asked_at_the_pace_of_questions(host: fakehost.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(one: Meter) -> None:
        host.figure(0, sm_clock=1)
        await one.ask(SECONDS)
        host.figure(0, sm_clock=2)
        for _ in range(50):
            await one.ask(SECONDS)
        assert own(one, host, 0)["sm_clock"] == 1
        monkeypatch.setattr(meter, "PACE", 0.0)
        await one.ask(SECONDS)
        assert own(one, host, 0)["sm_clock"] == 2

    metering(host, test)


def test_the_end_of_an_earlier_round_is_not_that_of_the_last(
    host: fakehost.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "PACE", 0.0)
    monkeypatch.setattr(child.Child, "say", lambda child, line: True)  # it hears nothing

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        asks = [asyncio.ensure_future(one.ask(SECONDS)) for _ in range(2)]
        await asyncio.sleep(0)
        one._take_line({"done": 1})
        assert not (await asyncio.wait(asks, timeout=0.1))[0]
        one._take_line({"done": 2})
        await asyncio.gather(*asks)

    metering(host, test)


def test_a_gpu_that_hangs_is_left_out_then(host: fakehost.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "SILENCE", 4.0)
    monkeypatch.setattr(meter, "PACE", 0.0)
    monkeypatch.setattr(child, "FIRST", 0.1)

    async def test(one: Meter) -> None:
        host.figure(0, sm_clock=1)
        host.figure(1, sm_clock=1)
        await one.ask(SECONDS)
        host.hang(0)
        began = time.monotonic()
        await one.ask(0.3)
        assert time.monotonic() - began < 3  # of four of silence
        assert own(one, host, 0)["sm_clock"] == 1
        assert not one.readings()[host.gpus[0].uuid].up
        host.figure(1, sm_clock=2)
        while own(one, host, 1)["sm_clock"] == 1:
            await one.ask(0.3)
        both = [one.readings()[gpu.uuid] for gpu in host.gpus]
        assert [known.up for known in both] == [False, True]
        assert both[0].age is not None
        assert both[1].age is not None
        assert both[0].age > both[1].age + 0.5

    metering(host, test)


def test_a_gpu_that_is_lost_and_comes_back(host: fakehost.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "PACE", 0.0)

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        for lost in (True, False):
            host.lose(0) if lost else host.find(0)
            await one.ask(SECONDS)
            assert [one.readings()[gpu.uuid].up for gpu in host.gpus] == [not lost, True]

    metering(host, test)


def test_what_is_old_is_not_told(host: fakehost.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(one: Meter) -> None:
        host.figure(0, sm_clock=1)
        await one.ask(SECONDS)
        monkeypatch.setattr(meter, "STALE", 0.0)
        known = one.readings()[host.gpus[0].uuid]
        assert (known.own, known.migs, known.up) == ({}, {}, True)

    metering(host, test)


def test_the_child_runs_while_somebody_asks(host: fakehost.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(one: Meter) -> None:
        assert not running(one)
        await one.ask(SECONDS)
        one.look(snapshot(host))
        assert running(one)
        monkeypatch.setattr(meter, "IDLE", 0.0)
        one.look(snapshot(host))
        await until(lambda: not running(one))
        await one.ask(SECONDS)
        assert running(one)

    metering(host, test)


def test_no_child_runs_while_gpus_are_let_go(host: fakehost.Host) -> None:
    held = [False]

    async def test(one: Meter) -> None:
        await one.ask(SECONDS)
        held[0] = True
        await one.stop(patient=True)
        assert not running(one)
        await one.ask(SECONDS)
        assert not running(one)

    metering(host, test, lambda: held[0])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"sm_clock": 1410, "power": 1.5}, {"sm_clock": 1410, "power": 1.5}),
        ({"sm_clock": True, "power": -1, "energy": 1 << 64, "temperature": "1", "bad": 1}, {}),
        ({"power": float("inf"), "energy": float("nan")}, {}),
        (["sm_clock"], {}),
    ],
)
def test_what_a_child_says_is_believed_as_far_as_it_can_be(host: fakehost.Host, line: Any, found: Any) -> None:
    async def test(one: Meter) -> None:
        uuid = host.gpus[0].uuid
        one._take_line({"poll": {uuid: {"gpu": line, "migs": {"MIG-x": line}}, "GPU-stranger": {"gpu": line}}})
        assert one.readings()[uuid].own == one.readings()[uuid].migs["MIG-x"] == found
        assert "GPU-stranger" not in one.readings()
        for wrong in ({"poll": 1}, {"poll": {uuid: 1}}, {"poll": {uuid: {"migs": 1}}}, {"done": "x"}):
            one._take_line(wrong)

    metering(host, test)
