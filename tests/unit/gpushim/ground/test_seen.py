"""What is not there, and what an ordinary user may not look at; `gpushim ps` says which it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gpushim.cli.ps import NONE, ps
from gpushim.containers import holders, runtime_state
from gpushim.engines.processes import running
from gpushim.ground import seen
from gpushim.inventory import present
from gpushim.paths import mountinfo
from unit import ordinary
from unit.gpushim.cli.looking import run
from unit.gpushim.containers.machines import Machine, given
from unit.gpushim.decision import inventories


@pytest.fixture
def folder() -> Iterator[Path]:
    with ordinary.folder() as made:
        yield made


def test_absent_and_hidden(folder: Path) -> None:
    (folder / "x").mkdir()
    (folder / "x" / "y").touch()
    with ordinary.hidden(folder / "x"), ordinary.user():
        absent = [name for name in ("x", "x/y", "x/z", "z", "z/y") if seen.absent(f"{folder}/{name}")]
        assert absent == ["z", "z/y"]
        with pytest.raises(PermissionError):
            seen.exists(f"{folder}/x/z")
        assert not seen.exists(f"{folder}/z")
        assert seen.barrier(f"{folder}/x/y/z") == f"{folder}/x"


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        ("x", ["x"]),
        ("x/*", ["x"]),
        ("a*/x/*", ["ab/x"]),
        ("a*/*/b", ["ab/x"]),
        ("*", []),
        ("z/*", []),
        ("a?/x", ["ab/x"]),
    ],
)
def test_directories_of_a_pattern(folder: Path, pattern: str, refused: list[str]) -> None:
    for name in ("x", "ab/x", "ac"):
        (folder / name).mkdir(parents=True)
    with ordinary.hidden(folder / "x"), ordinary.hidden(folder / "ab/x"), ordinary.user():
        assert [*seen.refused(f"{folder}/{pattern}")] == [f"{folder}/{name}" for name in refused]


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host with one container that has a GPU, and no engine that runs."""
    found = Machine(folder)
    found.runc("c", given("/dev/nvidia1"), found.process())
    monkeypatch.setattr(present, "snapshot", inventories.snapshot)
    monkeypatch.setattr(running, "find", list)
    monkeypatch.setattr(holders, "STATES", ((f"{folder}/states", "runc"), (f"{folder}/none", "crun")))
    monkeypatch.setattr(holders, "USERS", f"{folder}/user/*")
    look = holders.holders
    monkeypatch.setattr(holders, "holders", lambda inventory, states: look(inventory, states, str(found.proc)))
    return found


def shown(*args: str) -> Result:
    with ordinary.user():
        return run(ps, *args)


@pytest.mark.parametrize("hide", ["states", "states/c", "states/c/state.json", "bundles", "bundles/c/config.json"])
def test_ps_tells_what_it_may_not_look_at(machine: Machine, hide: str) -> None:
    with ordinary.hidden(machine.folder / hide):
        result = shown()
    assert "none of the containers that could be looked at has a GPU" in result.stdout
    assert f"cannot read {machine.folder}/{hide}, so " in result.stderr
    assert "run this as root" in result.stderr


def test_a_state_directory_that_somebody_names(machine: Machine) -> None:
    with ordinary.hidden(machine.states):
        assert f"cannot read {machine.states}, so" in shown(f"--state={machine.states}").stderr


def test_ps_of_json_says_it_too(machine: Machine) -> None:
    with ordinary.hidden(machine.states):
        result = shown("--format=json")
    assert (result.stdout, "cannot read" in result.stderr) == ("[]\n", True)


def test_a_process_whose_mounts_are_hidden(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only they tell what the hook alone has bound."""
    machine.runc("d", {}, pid := machine.process())

    real = mountinfo.read_proc

    def refuse(path: str, limit: int) -> Any:
        if path.endswith("/mountinfo"):
            raise PermissionError(13, os.strerror(13))
        return real(path, limit)

    monkeypatch.setattr(runtime_state, "read_proc", refuse)
    result = shown()
    assert f"/proc/{pid}" in result.stderr
    assert "cannot read" in result.stderr


def test_another_users_containers(machine: Machine) -> None:
    (machine.folder / "user/7").mkdir(parents=True)
    with ordinary.hidden(machine.folder / "user/7"):
        assert f"cannot read {machine.folder}/user/7, so" in shown().stderr


def test_whoever_sees_all_says_that_there_is_none(machine: Machine) -> None:
    for path in machine.proc.iterdir():
        path.rename(machine.folder / "ended")
    result = shown()
    assert (result.stdout, result.stderr) == (f"{NONE}\n", "")
