"""A request to cut GPUs as a layout says: what the next unattended refresh does for it, and what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fakehost
from gpushim.ground import system
from gpushim.mig import cut_answer, cut_request
from gpushim.paths import lock
from gpushim.refresh import refresh
from unit.gpuhook.sandbox import forked
from unit.gpushim.inventory.machine import Machine

FILE = """version: v1
mig-configs:
  day: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}]
  both: [{devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}}]
  too-many: [{devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 2}}]
"""


class Asked:
    """A host with two H100 in MIG mode, which is asked for layouts."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.host = machine.build([{**fakehost.H100, "mig": [], "minor": minor} for minor in (42, 43)])
        self.uuids = [gpu.uuid for gpu in self.host.gpus]
        (machine.folder / "mig.yaml").write_text(FILE)
        Path(machine.state, "device-plugin").mkdir(parents=True, mode=0o700)

    def ask(self, layout: str, *free: int, **more: Any) -> tuple[str, list[Any]]:
        """Ask, and refresh; return the answer: its problem, and what is not done yet, by number."""
        request = self.write(layout, *free, **more)
        self.refresh()
        answer = json.loads(self.path.read_text())
        assert answer["request"] == request
        return answer["problem"], [answer["gpus"].get(uuid) for uuid in self.uuids]

    def write(self, layout: str, *free: int, **more: Any) -> dict[str, Any]:
        """Ask."""
        request: dict[str, Any] = {"layout": layout, "free": [self.uuids[index] for index in free], "partitions": []}
        request.update({"boot": system.boot(), "at": system.clock(), **more})
        path = Path(self.machine.state, "device-plugin/mig.json")
        path.write_text(json.dumps(request))
        path.chmod(0o600)
        return request

    @property
    def path(self) -> Path:
        return Path(self.machine.state, "mig.json")

    def refresh(self) -> None:
        code, output = self.machine.refresh("--unattended")
        assert code == 0, output

    def profiles(self) -> list[list[str]]:
        """Return those of each GPU, of which the snapshot has as many."""
        self.host.adopt()
        found = [[mig.profile for mig in gpu.mig] for gpu in self.host.gpus]
        assert len(self.machine.saved()["mig"]) == sum(map(len, found))
        return found


@pytest.fixture
def asked(machine: Machine) -> Asked:
    return Asked(machine)


def test_only_what_is_free_is_cut(asked: Asked) -> None:
    assert asked.ask("both") == ("", ["", ""])
    assert asked.profiles() == [[], []]
    assert asked.ask("both", 1) == ("", ["", None])
    assert asked.profiles() == [[], ["7g.80gb"]]
    assert asked.ask("both", 0, 1) == ("", [None, None])
    assert asked.profiles() == [["7g.80gb"], ["7g.80gb"]]


def test_a_request_is_carried_out_once(asked: Asked) -> None:
    asked.ask("day", 0)
    asked.host.adopt()
    asked.host.set_mig(0, [])
    asked.refresh()
    assert asked.profiles()[0] == []


def test_what_a_kill_has_left_without_answer_is_answered(asked: Asked) -> None:
    asked.ask("day", 0)
    asked.path.unlink()
    before = asked.machine.saved()["mig"]
    asked.refresh()
    assert json.loads(asked.path.read_text())["gpus"] == {}
    assert asked.machine.saved()["mig"] == before


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("night", "has the layouts day, both, too-many; none of them is night"),
        ("too-many", "has no room for 7g.80gb: 2; the nearest that fits is 7g.80gb: 1"),
        ("both", "GPU 1 (NVIDIA H100 80GB HBM3) is cut on demand; name it in no layout"),
    ],
)
def test_what_is_refused_changes_nothing(asked: Asked, layout: str, problem: str) -> None:
    partitions = asked.uuids[1:] if layout == "both" else []
    assert problem in asked.ask(layout, 0, 1, partitions=partitions)[0]
    assert asked.profiles() == [[], []]


def test_a_gpu_in_use_waits_and_others_do_not(asked: Asked) -> None:
    asked.ask("both", 0, 1)
    asked.host.adopt()
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            asked.host.use(asked.host.gpus[0].mig[0].uuid, process.pid)
            assert asked.ask("day", 0) == ("", ["", None])
            assert asked.profiles() == [["7g.80gb"], ["7g.80gb"]]
        finally:
            process.kill()
    assert asked.ask("day", 0) == ("", [None, None])
    assert asked.profiles() == [["1g.10gb"] * 2, ["7g.80gb"]]


def test_a_gpu_for_which_it_fails_is_as_before(asked: Asked) -> None:
    asked.host.lack("nvmlDeviceCreateGpuInstanceWithPlacement", code=23)
    _, (problem, other) = asked.ask("day", 0)
    assert "cannot be changed: Insufficient Resources" in problem
    assert (other, asked.profiles()) == (None, [[], []])


def test_a_request_of_another_boot_is_none(asked: Asked) -> None:
    with pytest.raises(FileNotFoundError):
        asked.ask("day", 0, boot="another")
    assert asked.profiles() == [[], []]


def test_what_is_taken_back_while_somebody_else_cuts_is_not_cut(asked: Asked) -> None:
    asked.write("day", 0)

    @contextlib.contextmanager
    def held(path: str) -> Iterator[None]:
        Path(asked.machine.state, cut_request.NAME).unlink()  # while it waits for the lock
        with lock.held(path):
            yield

    def work() -> None:
        os.environ.update(asked.machine.environment())
        cut_answer.lock = SimpleNamespace(held=held)  # type: ignore[assignment, attr-defined]
        refresh.unattended(False)

    forked(work)
    assert asked.profiles() == [[], []]
    assert not asked.path.exists()


@pytest.mark.parametrize(("layout", "more"), [(["day"], {}), ("day", {"free": 0}), ("day", {"partitions": None})])
def test_what_is_no_request_is_told_and_changes_nothing(asked: Asked, layout: Any, more: dict[str, Any]) -> None:
    asked.write(layout, **more)
    code, output = asked.machine.refresh("--unattended")
    assert code == 0
    assert "mig.json is ignored: it is no request" in output
    assert not asked.path.exists()


def test_where_nvml_fails_the_answer_comes_later(asked: Asked) -> None:
    asked.write("day", 0)
    asked.host.behave(fail=999)
    asked.machine.refresh("--unattended")
    assert not asked.path.exists()
    asked.host.behave()
    asked.refresh()
    assert json.loads(asked.path.read_text())["gpus"] == {}
    assert asked.profiles()[0] == ["1g.10gb"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        *("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"),
        *("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"),
    ],
)
def test_killed_at_any_step_the_next_refresh_goes_on(asked: Asked, step: str) -> None:
    asked.ask("both", 0, 1)
    before = asked.path.read_text()
    asked.write("day", 0)

    def work() -> None:
        import pynvml

        os.environ.update(asked.machine.environment())
        setattr(pynvml, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        refresh.unattended(False)

    with pytest.raises(EOFError):  # of the child's pipe
        forked(work)
    os.wait()
    assert asked.path.read_text() == before
    asked.refresh()
    assert json.loads(asked.path.read_text())["gpus"] == {}
    assert asked.profiles() == [["1g.10gb"] * 2, ["7g.80gb"]]
