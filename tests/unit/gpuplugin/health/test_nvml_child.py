"""Real children watch a simulated host through the simulated NVML."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host
from gpuplugin.health import nvml_child
from gpuplugin.processes import child, moments
from gpuplugin.processes.moments import until as next_moment  # before looks_apart
from gpushim.inventory import nvml_program
from unit.gpuplugin import watched
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.watched import watch

host = watched.host
WELL = {
    "lost": False,
    "recovery": None,
    "rows": [0, 0],
    "pages": None,
    "ecc": None,
    "mig": False,
    "fabric": "",
    "error": "",
}


@pytest.mark.parametrize(("gi", "ci"), [(None, None), (1, None), (1, 0)])
def test_an_event_is_heard_at_once(host: Host, gi: Any, ci: Any) -> None:
    heard = watch(host, "events")

    def told(xid: int) -> Callable[[], bool]:
        return lambda: any(line.get("xid") == xid for _, line in heard.lines)

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        took = []
        for xid in (79, 48, 62):  # a busy machine may hold one up
            began = time.monotonic()
            host.xid(1, xid, gi, ci)
            await until(told(xid))
            assert heard.last("xid") == {"xid": xid, "gpu": host.gpus[1].uuid, "gi": gi, "ci": ci}
            took.append(next(when for when, line in heard.lines if line.get("xid") == xid) - began)
        print(f"XIDs are heard after {took} s")
        assert min(took) < 0.5
        host.ecc(0)
        await until(heard.told(lambda line: line["gpu"] == host.gpus[0].uuid, "ecc"))

    heard.run(body)


def test_events_of_others_are_told_while_a_gpu_is_lost_and_its_own_when_it_is_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = [gpu.uuid for gpu in host.gpus]
    monkeypatch.setattr(nvml_program, "CALL", quicker(EACH=0.025))
    heard = watch(host, "events")

    async def body() -> None:
        await until(heard.told(lambda line: line["watching"] == sorted(uuids), "watching"))
        host.lose(0)
        await until(
            heard.told(lambda line: line["watching"] == uuids[1:] and [*line["unwatched"]] == uuids[:1], "watching")
        )
        host.xid(1, 48)
        await until(heard.told(lambda line: line["gpu"] == uuids[1], "xid"))
        host.find(0)
        await until(heard.told(lambda line: line["watching"] == sorted(uuids), "watching"))
        host.xid(0, 31)
        await until(heard.told(lambda line: line["gpu"] == uuids[0], "xid"))
        assert not heard.blind

    heard.run(body)


def quicker(**constants: Any) -> str:
    """Return the call of the children's program with other constants."""
    places = {"EACH": "moments", "REOPEN": "nvml_child"}
    changed = "; ".join(f"{places[name]}.{name} = {value!r}" for name, value in constants.items())
    modules = "from gpuplugin.health import nvml_child; from gpuplugin.processes import moments"
    return nvml_program.CALL.replace("from MODULE import main", f"{modules}; {changed}; main = nvml_child.main")


def test_what_is_open_is_another_with_driver_bindings_root_or_gpus(host: Host) -> None:
    base = {**watched.snapshot(host), "platform": "native"}

    def opened(module: str | None = "580", inode: int = 5, **more: Any) -> object:
        found: Any = {**base, "stamp": {"module": module, "gpus": {"0000:10:00.0": inode}}, **more}
        return nvml_child.opens(found)

    assert opened() == opened(notes=["x"])
    others = [opened("590"), opened(inode=6), opened(inputs={"root": "/"}), opened(gpus=base["gpus"][1:])]
    assert all(one and one != opened() for one in others)
    assert opened(module=None) is opened(platform="wsl") is None


@pytest.mark.parametrize(
    "function", ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"]
)
@pytest.mark.parametrize("code", [3, 13])
def test_a_driver_without_events_is_no_error(host: Host, function: str, code: int) -> None:
    host.lack(function, code=code)
    heard = watch(host, "events")

    async def body() -> None:
        await until(lambda: heard.last("unsupported"))
        uuids = sorted(gpu.uuid for gpu in host.gpus)
        line = heard.lines[0][1]
        assert [line["watching"], line["unwatched"], line["unsupported"]] == [[], {}, uuids]

    heard.run(body)


def test_a_gpu_that_refuses_is_unwatched_and_it_is_said_why(host: Host) -> None:
    host.refuse_events(0, 999)
    heard = watch(host, "events")

    async def body() -> None:
        await until(lambda: heard.last("watching"))
        line = heard.lines[0][1]
        assert line["watching"] == [host.gpus[1].uuid]
        assert line["unwatched"] == {host.gpus[0].uuid: "Unknown Error"}

    heard.run(body)


@pytest.mark.parametrize("mode", ["events", "polls"])
def test_one_gpu_hangs_and_the_others_are_watched_soon(
    host: Host, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "STARTING", 1.0)
    monkeypatch.setattr(child, "FIRST", 0.05)
    host.hang(0)
    heard, key = watch(host, mode, 1.0), {"events": "watching", "polls": "poll"}[mode]

    async def body() -> None:
        await until(lambda: heard.last(key))
        assert heard.blind == [(f"a call of {host.gpus[0].uuid} hangs", host.gpus[0].uuid)]
        assert [*(heard.last(key) or {})[key]] == [host.gpus[1].uuid]
        assert (heard.last("poll") or {}).get("migs") is None

    heard.run(body)


def test_a_gpu_without_rows_to_spare_tells_its_retired_pages(host: Host) -> None:
    host.gpus[1].arch = "7.0"
    host.figure(1, retired_double=2, retired_single=5)
    heard = watch(host, "polls")

    async def body() -> None:
        await until(lambda: heard.last("poll"))
        poll = (heard.last("poll") or {})["poll"]
        found = [(poll[gpu.uuid]["rows"], poll[gpu.uuid]["pages"]) for gpu in host.gpus]
        assert found == [([0, 0], None), (None, 2)]

    heard.run(body)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda host: host.recovery(0, 4), {"recovery": 4}),
        (lambda host: host.fabric_state(0, 1), {"fabric": "it has not begun"}),
        (lambda host: host.fabric_state(0, 2), {"fabric": "it is being made"}),
        (lambda host: host.fabric_state(0, 3), {"fabric": ""}),
        (lambda host: host.fabric_state(0, 3, 999), {"fabric": "it has failed with NVML's error 999"}),
        (lambda host: host.rows(0, 1, 0), {"rows": [1, 0]}),
        (lambda host: host.rows(0, 0, 1), {"rows": [0, 1]}),
        (lambda host: host.set_mig(0, ["3g.20gb"]), {"mig": True}),
        (
            lambda host: host.lose(0),
            {"lost": True, "rows": None, "mig": None, "fabric": None, "error": "GPU is lost"},
        ),
        (
            lambda host: host.lose(0, 16),
            {"rows": None, "mig": None, "fabric": None, "error": "the GPU must be reset"},
        ),
        (lambda host: host.lack("nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", code=13), {"rows": None}),
    ],
)
def test_a_poll_tells_what_has_changed(host: Host, change: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_program, "CALL", quicker(EACH=0.05, REOPEN=0.2))
    heard, uuid = watch(host, "polls"), host.gpus[0].uuid

    async def body() -> None:
        await until(heard.told(lambda line: line["poll"][uuid] == WELL, "poll"))
        change(host)
        await until(heard.told(lambda line: line["poll"][uuid] == {**WELL, **found}, "poll"))
        host.find(0)
        await until(heard.told(lambda line: not line["poll"][uuid]["error"], "poll"))
        assert not heard.blind

    heard.run(body)


def test_a_poll_lists_gpus_and_mig_instances_that_come_and_go(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_program, "CALL", quicker(EACH=0.05))
    heard, uuids = watch(host, "polls"), [gpu.uuid for gpu in host.gpus]

    async def body() -> None:
        await until(heard.told(lambda line: line["gpus"] == uuids and line["migs"] == [], "poll"))
        host.set_mig(1, [(1, 0, "3g.20gb", "MIG-a")])
        await until(heard.told(lambda line: line["migs"] == ["MIG-a"], "poll"))
        host.set_mig(1, [(1, 0, "3g.20gb", "MIG-b")])
        await until(heard.told(lambda line: line["migs"] == ["MIG-b"], "poll"))
        host.gpus.pop()
        host.update()
        await until(heard.told(lambda line: line["gpus"] == uuids[:1] and line["poll"][uuids[1]]["lost"], "poll"))

    heard.run(body)


def test_nvml_that_cannot_be_used_is_the_reason(host: Host) -> None:
    host.behave(fail=9)
    heard = watch(host, "polls")

    async def body() -> None:
        await until(lambda: heard.blind)
        assert heard.blind[0] == ("NVML cannot be used (Driver Not Loaded)", "")

    heard.run(body)


@pytest.mark.parametrize("hung", [False, True])
@pytest.mark.parametrize("mode", ["events", "polls"])
def test_it_ends_with_its_parent(host: Host, mode: str, hung: bool) -> None:
    host.hang(0 if hung else None)
    words = nvml_child.command(mode, watched.snapshot(host), f"{host.root}/proc", ())
    parent = f"import os, sys\nprint(os.posix_spawn({words[0]!r}, {words!r}, {{}}), flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        pid, told = int(process.stdout.readline()), b""
        while not told.startswith(b'{"asks":"GPU-' if hung else (b'{"watching"', b'{"poll"')):
            told = process.stdout.readline()
        process.kill()

    async def ended() -> None:
        stat = Path(f"/proc/{pid}/stat")
        await until(lambda: not stat.exists() or b") Z " in stat.read_bytes())

    try:
        asyncio.run(ended())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("well", "rounds"), [(False, 2), (True, 20)])
def test_nvml_is_opened_again_soon_while_a_gpu_is_in_trouble(
    well: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was opened while a GPU was lost may never find it; and a refresh follows within the ten seconds."""
    monkeypatch.setattr(moments, "until", next_moment)
    now, looks = 0.3, [well] * 19 + [False]

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def look(_: object) -> bool:
        sleep(0.1)
        return looks.pop(0)

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(nvml_child.Polls, "_round", look)
    nvml_child.Polls(None, [], "").watch()
    assert 20 - len(looks) == rounds
    assert well or now < 10 - moments.EACH
