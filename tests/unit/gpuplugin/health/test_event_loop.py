"""Events are merged, never dropped; and after a gap each GPU is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host
from gpuplugin.health import event_loop, nvml_child
from gpuplugin.health.event_loop import Merged
from gpuplugin.health.nvml_lines import Since
from gpuplugin.processes import moments
from gpushim.ground import system
from unit.gpuplugin import watched
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.watched import Heard, snapshot, watch

host = watched.host
STORM = 3000


def test_behind_a_storm_every_other_event_is_told(host: Host) -> None:
    heard = watch(host, "events")

    def told() -> list[int]:
        return [line["xid"] for _, line in heard.lines if "xid" in line]

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        storm = f"gpu={host.gpus[0].uuid} type=8 data=13 gi=-1 ci=-1\n" * STORM
        with Path(host.root, "etc/fakehost.events").open("a") as file:
            file.write(storm)
        host.xid(1, 48)
        host.xid(0, 79)
        await until(heard.told(lambda line: line["xid"] == 79 and line["gpu"] == host.gpus[0].uuid, "xid"), 5)
        assert told().count(48) == 1
        assert 1 <= told().count(13) <= 5
        assert not heard.blind
        await until(lambda: told().count(13) >= 2)  # that it came again

    heard.run(body)


def test_the_first_of_a_kind_is_due_at_once_and_the_next_after_the_pace() -> None:
    merged, one, other = Merged(), (13, "a", None, None), (48, "b", None, None)
    for _ in range(1500):
        merged.add(one)
    assert merged.due(0.0) == [one]
    for _ in range(1500):
        merged.add(one)
    merged.add(other)
    assert merged.due(0.1) == [other]
    assert merged.wait(0.4) == pytest.approx(event_loop.PACE - 0.4)
    assert merged.due(event_loop.PACE) == [one]
    assert 0 < merged.wait(9.0) <= moments.EACH


def test_however_many_kinds_there_are_all_are_told_in_time_and_in_order() -> None:
    merged, kinds = Merged(), [(xid, "a", None, None) for xid in range(1000)]
    for key in kinds:
        merged.add(key)
    told: list[Any] = []
    for second in range(12):
        found = merged.due(float(second))
        assert len(found) <= event_loop.MOST_SENT
        told += found
    assert told == kinds


def test_the_kinds_of_a_gpu_are_bounded_and_each_xid_is_among_them() -> None:
    merged = Merged()
    for xid in (13, 31):
        for gi in range(500):
            merged.add((xid, "a", gi, 0))
    merged.add((48, "b", None, None))
    found = merged.due(0.0, everything=True)
    assert len(found) == event_loop.KINDS + 2 + 1
    assert {(13, "a", None, None), (31, "a", None, None), (48, "b", None, None)} <= {*found}


def gap(host: Host, heard: dict[str, Since], log: str = "") -> Heard:
    """Return a child that begins to listen after a gap."""
    Path(host.root, "dev").mkdir(exist_ok=True)
    Path(host.root, "dev/kmsg").write_text(log)
    words = lambda suspects: nvml_child.command("events", snapshot(host), f"{host.root}/proc", suspects, heard)  # noqa: E731
    return Heard("", words)


def xid(host: Host, gpu: int, number: int, ago: float) -> str:
    when = time.clock_gettime(time.CLOCK_MONOTONIC) - ago
    return f"4,7,{round(when * 1e6)},-;NVRM: Xid (PCI:{host.gpus[gpu].pci.rpartition('.')[0]}): {number}, pid=1\n"


def test_xids_of_the_gap_are_told_from_the_kernels_log(host: Host) -> None:
    now, (one, other) = system.clock(), (gpu.uuid for gpu in host.gpus)
    log = xid(host, 0, 79, 50) + xid(host, 1, 48, 50) + xid(host, 0, 94, 5)
    heard = gap(host, {one: Since(now - 20), other: Since(now - 60)}, log)

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        told = [(line["gpu"], line["xid"]) for _, line in heard.lines if "xid" in line]
        assert told == [(other, 48), (one, 94)]
        assert heard.lines[-1][1]["watching"] == sorted((one, other))  # after that
        assert (heard.last("xid") or {})["at"] == pytest.approx(now - 5, abs=3)

    heard.run(body)


def test_each_gpu_is_asked_before_it_is_told_as_watched(host: Host) -> None:
    host.recovery(1, 1)
    host.figure(0, ecc_uncorrected_volatile=2)
    heard = gap(host, {})

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        asked = (heard.last("asked") or {})["asked"]
        assert asked[host.gpus[1].uuid]["recovery"] == 1
        assert asked[host.gpus[0].uuid]["ecc"] == 2
        assert len(heard.lines) == 1

    heard.run(body)


def test_a_child_that_began_anew_by_itself_asks_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's set is made again when a GPU is lost: the others are not listened to for a moment."""
    heard = gap(host, {})

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        host.recovery(1, 1)
        host.lose(0)
        line = heard.told(lambda line: line.get("asked", {}).get(host.gpus[1].uuid, {}).get("recovery") == 1, "asked")
        await until(line)
        assert (heard.last("asked") or {})["watching"] == [host.gpus[1].uuid]

    heard.run(body)
