"""What a create does about the snapshot: read it, doubt it, have it rebuilt."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpushim.errors import CONFIG, DRIVER, INVENTORY, GpushimError
from gpushim.inventory import ensure
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow


def snapshot(machine: Machine) -> dict[str, Any]:
    return ensure.snapshot(machine.config, machine.state)


def refusal(machine: Machine) -> GpushimError:
    with pytest.raises(GpushimError) as caught:
        snapshot(machine)
    return caught.value


@pytest.fixture
def fresh(machine: Machine) -> Machine:
    machine.build(1)
    machine.refreshed()
    return machine


def test_true_snapshot_is_taken_without_a_child(fresh: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/false"])
    assert snapshot(fresh) == fresh.saved()


def test_first_create_makes_the_snapshot(machine: Machine) -> None:
    machine.build(1)
    assert snapshot(machine) == machine.saved()


def test_many_first_creates_make_one_snapshot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1)
    log = Path(machine.config).with_name("refreshes")
    real = ensure.command()
    script = f'echo refresh >>{log}; exec "$@"'
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/sh", "-c", script, "sh", *real])
    with ThreadPoolExecutor(8) as creates:
        found = list(creates.map(lambda _: snapshot(machine), range(8)))
    assert found == [machine.saved()] * 8
    assert log.read_text() == "refresh\n"


def test_a_queue_that_does_not_move(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1)
    monkeypatch.setattr(ensure, "DEADLINE", 0.2)
    Path(machine.state).mkdir()
    with open(f"{machine.state}/queue", "wb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert snapshot(machine) == machine.saved()


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DOUBTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "truncated": lambda path: path.write_text(path.read_text()[:500]),
    "no object": lambda path: path.write_text("[]"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff"),
    "nested": lambda path: path.write_text("[" * 100000),
    "other schema": lambda path: edit(path, version=1),
    "other gpushim": lambda path: edit(path, gpushim="0.0.1"),
    "other boot": lambda path: edit(path, stamp=["another boot", *json.loads(path.read_text())["stamp"][1:]]),
    "other config": lambda path: edit(path, inputs={"config": "/etc/other.toml"}),
    "no inputs": lambda path: edit(path, inputs=None),
    "odd inputs": lambda path: edit(path, inputs={"config": str(path.parent.parent / "config.toml")}),
    "odd nodes": lambda path: edit(
        path, inputs={"config": str(path.parent.parent / "config.toml"), "root": "/", "nodes": [None]}
    ),
    "written by others": lambda path: path.chmod(0o666),
    "owned by others": lambda path: os.chown(path, 4711, -1),
    "too large": lambda path: os.truncate(path, ensure.SNAPSHOT_LIMIT + 1),
}


@pytest.mark.parametrize("spoil", DOUBTS.values(), ids=DOUBTS)
def test_doubtful_snapshot_is_rebuilt(fresh: Machine, spoil: Callable[[Path], object]) -> None:
    path = Path(fresh.state, "inventory.json")
    before = json.loads(path.read_text())
    spoil(path)
    assert ensure.read(fresh.config, fresh.state) is None
    assert snapshot(fresh)["gpus"] == before["gpus"]
    assert ensure.read(fresh.config, fresh.state) is not None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/etc/passwd", path)], ids=["fifo", "link"])
def test_what_is_no_file_is_replaced(fresh: Machine, make: Callable[[str], None]) -> None:
    path = f"{fresh.state}/inventory.json"
    os.unlink(path)
    make(path)
    assert snapshot(fresh)["version"] == ensure.SCHEMA


def test_host_that_changed_is_looked_at_again(fresh: Machine) -> None:
    fresh.build(2)
    assert len(snapshot(fresh)["gpus"]) == 2


def test_node_that_appears_makes_the_snapshot_stale(fresh: Machine) -> None:
    os.mknod(f"{fresh.root}/dev/gdrdrv", 0o020666, os.makedev(300, 0))
    assert snapshot(fresh)["features"]["gdrcopy"] == ["/dev/gdrdrv"]


def test_who_may_not_renew_it_goes_by_the_facts(fresh: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(fresh.state, "inventory.json")
    edit(path, looked=fresh.saved()["looked"] - 1e6)
    assert ensure.read(fresh.config, fresh.state) is None
    monkeypatch.setattr("posix.access", lambda path, mode: False)
    assert ensure.read(fresh.config, fresh.state) == fresh.saved()
    edit(path, stamp=["another boot", *fresh.saved()["stamp"][1:]])
    assert ensure.read(fresh.config, fresh.state) is None


def test_in_which_way_it_is_stale(fresh: Machine) -> None:
    assert ensure.last(fresh.config, fresh.state) == (fresh.saved(), "")
    assert ensure.last("/etc/other.toml", fresh.state) == ({}, "policy")
    os.mknod(f"{fresh.root}/dev/gdrdrv", 0o020666, os.makedev(300, 0))
    assert ensure.last(fresh.config, fresh.state) == (fresh.saved(), "host")
    fresh.configure("[log]\n")
    assert ensure.last(fresh.config, fresh.state) == ({}, "policy")


def test_host_that_cannot_serve_gpus_is_not_asked_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1).half_upgrade("550.54.14")
    assert snapshot(machine)["error"]["code"] == DRIVER
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/false"])
    assert snapshot(machine)["error"]["code"] == DRIVER


def test_refusal_of_the_child_is_passed_on(machine: Machine) -> None:
    machine.configure("[drivers]\n")
    error = refusal(machine)
    assert error.exit_code == CONFIG
    assert str(error) == f"{machine.config}: drivers is not a known key; did you mean driver?"


def test_hanging_nvml(machine: Machine) -> None:
    machine.build(1, "[refresh]\ndeadline-seconds = 1\n").behave(hang=True)
    error = refusal(machine)
    assert error.exit_code == INVENTORY
    assert "waited 1 s for NVML to initialise" in str(error)


@pytest.mark.parametrize("close_stderr", ["", "exec 2>&-;"])
def test_child_that_does_not_end_is_killed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, close_stderr: str
) -> None:
    machine.configure("[refresh]\ndeadline-seconds = 1\n")
    monkeypatch.setattr(ensure, "GRACE", 0)
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/sh", "-c", f"{close_stderr} exec sleep 60"])
    started = time.monotonic()
    assert "waited 1 s for NVML and gave up" in str(refusal(machine))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "failed with code 3 and did not say why"),
        ("echo noise >&2; echo gpushim: sorry >&2; exit 3", "sorry"),
        ("head -c 1000000 /dev/zero >&2; echo >&2; echo last >&2; exit 3", "last"),
        ("kill -SEGV $$", "was ended by signal 11"),
        ("exit 0", "keep changing"),
    ],
)
def test_child_that_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/sh", "-c", script])
    error = refusal(machine)
    assert words in str(error)
    assert "\n" not in str(error)


def test_child_that_cannot_be_started(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensure, "command", lambda: ["/nowhere/python3"])
    assert "cannot be started: " in str(refusal(machine))


def test_child_gets_a_minimal_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    script = "env | cut -d= -f1 | sort | tr '\\n' ' ' >&2; exit 1"
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/sh", "-c", script])
    assert str(refusal(machine)) == "GPUSHIM_CONFIG GPUSHIM_STATE LC_ALL PATH PWD"


def test_no_descriptors_are_left_open(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensure, "command", lambda: ["/bin/false"])
    before = os.listdir("/proc/self/fd")
    refusal(machine)
    assert os.listdir("/proc/self/fd") == before
