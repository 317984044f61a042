"""What the node is asked to do, and what is said when it does nothing."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.processes import counts
from gpuplugin.snapshot import node_requests, node_snapshot, release
from gpuplugin.snapshot.node_requests import Renewal
from gpushim.ground import system
from gpushim.refresh import plugin_requests
from unit.gpuplugin.snapshot.saved_snapshot import saved
from unit.gpuplugin.snapshots import gpu, snapshot


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what is wanted."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(node_requests, "ANSWER", 0.0)
    release.prepare()
    return tmp_path / "device-plugin" / "wanted"


def asked(file: Path) -> Any:
    found = json.loads(file.read_text()) if file.exists() else None
    return found and {key: found[key] for key in ("refresh", "units")}


@pytest.mark.parametrize("step", [-86400.0, -3600.0, 3600.0, 86400.0])
def test_a_clock_that_is_set_loses_nothing_that_was_asked_for(
    file: Path, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_requests.ask(units=["a"])
    then = file.stat().st_mtime + step
    os.utime(file, (then, then))
    monkeypatch.setattr("time.time", lambda: then - step)
    node_requests.ask(renewed=True)
    assert asked(file) == {"refresh": True, "units": ["a"]}


def test_what_was_asked_for_just_now_is_asked_for_still(file: Path) -> None:
    node_requests.ask(units=["b"])
    node_requests.ask(renewed=True)
    node_requests.ask(units=["a"])
    assert asked(file) == {"refresh": True, "units": ["a", "b"]}
    assert file.stat().st_mode & 0o777 == 0o600


def test_each_is_asked_for_as_long_as_it_may_not_have_been_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often others are asked for meanwhile."""
    now = 100.0
    monkeypatch.setattr(system, "clock", lambda: now)
    node_requests.ask(renewed=True, units=["a"])
    for unit in "bcd":
        now += 2
        node_requests.ask(units=[unit])
    assert asked(file) == {"refresh": False, "units": ["b", "c", "d"]}


UNIT = "gpushim-mps@{:064}.service"


def test_of_more_than_are_served_the_last_are_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "clock", itertools.count(100.0, 0.001).__next__)
    for number in range(plugin_requests.UNITS + 10):
        node_requests.ask(units=[UNIT.format(number)])
    units = asked(file)["units"]
    assert len(units) == plugin_requests.UNITS
    assert units[-1] == UNIT.format(plugin_requests.UNITS + 9)
    assert plugin_requests._is_well_formed(units)
    assert file.stat().st_size < plugin_requests.LIMIT


def test_who_else_can_write_it_asks_for_nothing(file: Path) -> None:
    file.write_text('{"refresh": true, "units": ["x"]}')
    file.chmod(0o666)
    node_requests.ask()
    assert asked(file) == {"refresh": False, "units": []}


def test_a_snapshot_that_is_well_is_not_asked_for(file: Path) -> None:
    one = Renewal()
    saved(file.parents[1])
    assert one.read()
    assert (one.problem, asked(file)) == (None, None)


def test_one_whose_life_is_over_is_asked_for_and_comes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Renewal()
    saved(file.parents[1], looked=0.0, life=1)
    assert one.read() is None
    assert one.last() is not None
    assert asked(file) == {"refresh": True, "units": []}
    for _ in range(3):
        assert one.read() is None
    assert "is out of date" in str(one.problem)
    assert len(caplog.messages) == counts.counted[counts.REFRESH_ERRORS, ""] == 1
    saved(file.parents[1])
    assert one.read()
    assert one.problem is None
    assert sum(counts.timed[counts.REFRESHES, ""][1:]) == 1


def test_asked_for_again_more_and_more_rarely(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, one, times = 100.0, Renewal(), []
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(node_requests, "ask", lambda renewed: times.append(now - 100))
    while now < 250:
        one.read()
        now += 1
    assert times == [0, 1, 3, 7, 15, 31, 63, 123]


def test_news_are_asked_for_though_the_snapshot_is_well(file: Path) -> None:
    one = Renewal()
    saved(file.parents[1])
    one.hurry()
    assert asked(file)["refresh"]
    assert one.read()  # what is known is gone by
    assert "is not renewed; gpushim refresh --keep" in str(one.problem)
    saved(file.parents[1])
    assert one.read()
    assert one.problem is None


def test_what_was_looked_at_before_a_release_ended_does_not_count(file: Path) -> None:
    renewal = Renewal()
    saved(file.parents[1])
    assert renewal.read()
    renewal.begin_anew()
    assert renewal.read() is None
    assert asked(file) == {"refresh": True, "units": []}
    saved(file.parents[1], gpus=[gpu(0), gpu(1)])
    found = renewal.read()
    assert found
    assert len(found["gpus"]) == 2


def test_a_refresh_that_runs_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, path = Renewal(), file.parents[1] / "lock"
    path.touch(0o600)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):
            assert one.read() is None
        assert one.problem is None
        monkeypatch.setattr("gpuplugin.snapshot.node_requests.longest", lambda: 0)
        one.read()
    assert "there is no" in str(one.problem)


def test_a_refresh_that_failed_is_said(file: Path) -> None:
    one = Renewal()
    one.read()
    failure = {"at": int((system.clock() + 1) * 1e9), "sentence": "so it is", "code": 12}
    (file.parents[1] / "failure").write_text(json.dumps(failure))
    one.read()
    assert str(one.problem) == "so it is"


def test_a_directory_that_cannot_be_written(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.mkdir()  # which a rename does not replace
    assert Renewal().read() is None
    assert "wanted cannot be written: Is a directory" in caplog.messages[0]


@pytest.mark.parametrize("pod", [True, False])
def test_a_gpu_that_comes_ends_what_runs_in_a_pod(file: Path, pod: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host a process sees all nodes, and none is another's."""
    monkeypatch.setattr(node_snapshot, "DEV", str(file.parent))
    if pod:
        monkeypatch.setenv(node_snapshot.POD, "10.0.0.1")
    one, known = Renewal(), snapshot([gpu(0)])
    saved(file.parents[1], gpus=[], nodes={})
    assert one.read()
    saved(file.parents[1], gpus=known["gpus"], nodes=known["nodes"])
    if pod:
        with pytest.raises(node_snapshot.OutdatedError, match="GPU 0"):
            one.read()
    else:
        assert one.read()
