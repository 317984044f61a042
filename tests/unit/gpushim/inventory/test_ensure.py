"""What a create does about the snapshot: read it, doubt it, have it rebuilt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.ground.errors import DRIVER
from gpushim.inventory import ensure, renew
from unit.gpushim.inventory.machine import Machine, refusal, snapshot


@pytest.fixture
def fresh(machine: Machine) -> Machine:
    machine.build(1)
    machine.refreshed()
    return machine


def test_true_snapshot_is_taken_without_a_child(fresh: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renew, "command", lambda: ["/bin/false"])
    assert snapshot(fresh) == fresh.saved()


def test_first_create_makes_the_snapshot(machine: Machine) -> None:
    machine.build(1)
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
    "other schema": lambda path: edit(path, form=1),
    "other gpushim": lambda path: edit(path, gpushim="0.0.1"),
    "other boot": lambda path: edit(path, stamp={**json.loads(path.read_text())["stamp"], "boot": "another boot"}),
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
    assert snapshot(fresh)["form"] == ensure.FORM


@pytest.mark.parametrize(("mode", "uid"), [(0o777, 0), (0o775, 0), (0o755, 4711)])
def test_a_state_directory_of_others_is_not_trusted_whatever_is_in_it(fresh: Machine, mode: int, uid: int) -> None:
    os.chmod(fresh.state, mode)
    os.chown(fresh.state, uid, -1)
    assert ensure.last(fresh.config, fresh.state) == (ensure.NONE, "policy")
    assert "cannot be trusted" in str(refusal(fresh))


def test_who_may_not_renew_it_goes_by_the_facts(fresh: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(fresh.state, "inventory.json")
    edit(path, looked=fresh.saved()["looked"] - 1e6)
    assert ensure.read(fresh.config, fresh.state) is None
    monkeypatch.setattr("posix.access", lambda path, mode: False)
    assert ensure.read(fresh.config, fresh.state) == fresh.saved()
    edit(path, stamp={**fresh.saved()["stamp"], "boot": "another boot"})
    assert ensure.read(fresh.config, fresh.state) is None


def test_in_which_way_it_is_stale(fresh: Machine) -> None:
    assert ensure.last(fresh.config, fresh.state) == (fresh.saved(), "")
    assert ensure.last("/etc/other.toml", fresh.state) == (ensure.NONE, "policy")
    os.mknod(f"{fresh.root}/dev/gdrdrv", 0o020666, os.makedev(300, 0))
    assert ensure.last(fresh.config, fresh.state) == (fresh.saved(), "host")
    fresh.configure("[log]\n")
    assert ensure.last(fresh.config, fresh.state) == (ensure.NONE, "policy")


def test_host_that_cannot_serve_gpus_is_not_asked_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1).half_upgrade("550.54.14")
    assert snapshot(machine)["error"]["code"] == DRIVER
    monkeypatch.setattr(renew, "command", lambda: ["/bin/false"])
    assert snapshot(machine)["error"]["code"] == DRIVER


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_what_the_launcher_executes_is_written_again_when_others_may_write_to_it(machine: Machine, mode: int) -> None:
    """A shell cannot see modes."""
    machine.build(1)
    machine.refreshed()
    launcher_facts = Path(machine.state, "runtime")
    launcher_facts.chmod(mode)
    assert ensure.last(machine.config, machine.state)[1] == "policy"
    launcher_facts.write_text("/theirs\n")
    machine.refreshed()
    assert (launcher_facts.stat().st_mode & 0o777, launcher_facts.read_text() != "/theirs\n") == (0o644, True)
