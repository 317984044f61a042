"""An unattended refresh in the midst of a driver's upgrade: it waits, loads nothing, and opens no GPU."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.model import Snapshot
from gpushim.inventory import ensure, gpus, modules, survey
from gpushim.refresh import plugin_requests, refresh
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow


@pytest.fixture
def host(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> fakehost.Host:
    """A host that writes down when NVML is opened, and what is to be unattended there."""
    monkeypatch.setattr(modules, "REST", 0.5)
    monkeypatch.setattr(modules, "LIMIT", 3.0)
    monkeypatch.setattr(modules, "PAUSE", 0.05)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # it would stay in this process, with this host's library
    monkeypatch.setenv("GPUSHIM_CONFIG", machine.config)
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    host = machine.build(1)
    Path(host.root, "usr/lib/fakehost").mkdir(exist_ok=True)
    return host


def waited(host: fakehost.Host) -> float:
    began = time.monotonic()
    modules.wait(host.root, host.root + "/proc")
    return time.monotonic() - began


def listed() -> Snapshot:
    """Refresh unattended; returns the snapshot."""
    found = refresh.unattended(load=False)
    assert found is not None
    return found


def mark(host: fakehost.Host, state: str) -> None:
    """Let the kernel say that the driver's module is being loaded or unloaded."""
    path = Path(host.root, "proc/modules")
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line.replace('Live', state)}\n" for line in lines))


def goes(host: fakehost.Host) -> None:
    """Let a MIG instance come just when a module goes."""
    host.set_mig(0, ["1g.5gb"])
    mark(host, "Unloading")


def caches(host: fakehost.Host) -> None:
    """Write the library cache again, as ldconfig does."""
    path = Path(host.root, "etc/ld.so.cache")
    fresh = path.with_name("ld.so.cache~")
    fresh.write_bytes(path.read_bytes())
    fresh.rename(path)


@pytest.fixture
def busy(host: fakehost.Host) -> Iterator[Callable[..., threading.Thread]]:
    """Start changes beside the test: what is done, how often, and after how many seconds each."""
    threads = []

    def start(change: Callable[[int], object], times: int, pause: float = 0.2) -> threading.Thread:
        def all_of_them() -> None:
            for number in range(times):
                time.sleep(pause)
                change(number)

        threads.append(threading.Thread(target=all_of_them))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join()


def test_rest_is_enough(host: fakehost.Host) -> None:
    assert 0.5 <= waited(host) < 2


def test_each_ldconfig_begins_the_wait_anew(host: fakehost.Host, busy: Callable[..., threading.Thread]) -> None:
    thread = busy(lambda _: caches(host), 5)
    assert waited(host) >= 1.2
    assert not thread.is_alive()


def test_modules_that_go_one_behind_the_other(host: fakehost.Host, busy: Callable[..., threading.Thread]) -> None:
    names = ["nvidia_uvm", "nvidia_modeset", "nvidia"]
    thread = busy(lambda number: host.unload(*names[: number + 1]), 3, 0.3)
    assert waited(host) >= 1.2
    assert not thread.is_alive()


def test_somebody_who_changes_it_all_the_time(host: fakehost.Host, busy: Callable[..., threading.Thread]) -> None:
    busy(lambda _: caches(host), 20)
    assert 3 <= waited(host) < 4


@pytest.mark.parametrize("state", ["Unloading", "Loading"])
def test_a_module_that_is_neither_there_nor_gone(host: fakehost.Host, state: str) -> None:
    mark(host, state)
    with pytest.raises(GpushimError, match="is being loaded or unloaded"):
        waited(host)


def test_the_order_of_an_upgrade(
    machine: Machine, host: fakehost.Host, busy: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ldconfig, then all modules go: no module is loaded, and NVML is not opened, before or after."""
    machine.refreshed()
    asked: list[str] = []
    monkeypatch.setattr(gpus, "read", lambda *_: asked.append("NVML"))
    names = ["nvidia_uvm", "nvidia_modeset", "nvidia"]
    caches(host)
    busy(lambda number: host.unload(*names[: number + 1]), 3, 0.3)
    error = listed()["error"]
    assert error is not None
    assert "no NVIDIA driver is loaded" in error["sentence"]
    assert (asked, fakehost.kernel.loads(host.root)) == ([], [])


@pytest.mark.parametrize("load", [False, True])
def test_modules_are_loaded_for_who_may(
    host: fakehost.Host, load: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(modules, "HELPER", f"{tmp_path}/helper")
    host.unload("nvidia_uvm")
    refresh.unattended(load)
    assert fakehost.kernel.loads(host.root) == (["nvidia_uvm"] if load else [])


def test_a_snapshot_that_is_true_costs_no_wait_and_no_nvml(
    machine: Machine, host: fakehost.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the timer, every minute."""
    before = machine.refreshed()
    monkeypatch.setattr(modules, "wait", None)
    monkeypatch.setattr(survey, "survey", None)
    assert refresh.unattended(load=False) == before


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        (lambda host: os.mknod(f"{host.root}/dev/gdrdrv", 0o020666, os.makedev(300, 0)), False),
        (lambda host: host.set_mig(0, ["1g.5gb"]), False),
        (goes, True),
        (caches, True),
        (lambda host: host.unload("nvidia_uvm"), True),
        (lambda host: shutil.rmtree(f"{host.root}/dev/dri"), True),
    ],
    ids=["gdrdrv", "MIG", "a module goes", "libraries", "a module is gone", "nvidia_drm is gone"],
)
def test_only_what_may_be_an_upgrade_is_waited_for(
    machine: Machine, host: fakehost.Host, change: Any, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine.build(1, drm=True)
    machine.refreshed()
    change(host)
    calls: list[str] = []
    monkeypatch.setattr(modules, "wait", lambda *_: calls.append("wait"))
    refresh.unattended(load=False)
    assert bool(calls) is waits


@pytest.mark.parametrize(("left", "looks"), [(110, False), (75, True), (-20, True)])
def test_a_snapshot_is_listed_anew_before_its_life_is_over(
    machine: Machine, host: fakehost.Host, left: int, looks: bool
) -> None:
    """No create pays for the look, if the timer comes every 70 seconds, and refresh waits some more."""
    found = machine.refreshed()
    found["looked"] -= found["life"] - left
    Path(machine.state, ensure.SNAPSHOT).write_text(json.dumps(found))
    assert (listed()["looked"] > found["looked"]) is looks
    assert (machine.saved()["looked"] > found["looked"]) is looks


def test_what_changes_while_it_is_listed_is_listed_again(
    machine: Machine, host: fakehost.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rounds = refresh.refresh, []

    def changing(*args: object, **options: bool) -> object:
        found = real(*args, **options)  # type: ignore[arg-type]
        rounds.append(found)
        if len(rounds) == 1:
            os.mknod(f"{machine.root}/dev/gdrdrv", 0o020666, os.makedev(300, 0))
        return found

    monkeypatch.setattr(refresh, "refresh", changing)
    assert listed()["features"]["gdrcopy"] == ["/dev/gdrdrv"]


def test_who_asks_while_the_gpus_are_listed_is_answered_by_the_next_look(
    machine: Machine, host: fakehost.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = gpus.read, Path(machine.state, plugin_requests.NAME)

    def read(*args: Any, **options: Any) -> Any:
        asked.parent.mkdir(exist_ok=True)
        asked.write_text(json.dumps({"refresh": True, "boot": system.boot(), "at": system.clock()}))
        return real(*args, **options)

    monkeypatch.setattr(gpus, "read", read)
    refresh.unattended(load=False)
    assert plugin_requests.serve(machine.state)
    monkeypatch.setattr(gpus, "read", real)
    refresh.unattended(load=False)
    assert not plugin_requests.serve(machine.state)


def test_nvml_is_let_go_at_once(machine: Machine, host: fakehost.Host) -> None:
    log = Path(host.root, "usr/lib/fakehost/nvml.log")
    log.touch()
    machine.refreshed()
    assert log.read_text() == "opened\nlet go\n"
