"""Every command with standard streams that cannot be used: one sentence or none, never a traceback."""

from __future__ import annotations

import re
import subprocess

import pytest

from unit.gpushim.cli import every
from unit.gpushim.inventory.machine import Machine

ALL = {**every.WAYS, **every.MORE}
Outcomes = dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return every.host(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def well(machine: Machine) -> Outcomes:
    return outcomes(machine, "well")


def outcomes(machine: Machine, way: str) -> Outcomes:
    found = every.run(machine, way, [each.words(machine) for each in ALL.values()])
    moment = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")
    return {name: (code, moment.sub("TIME", out), said) for name, (code, out, said) in zip(ALL, found)}


def test_no_command_is_left_out() -> None:
    assert set(every.WAYS) == set(every.names())


def test_what_is_well(well: Outcomes) -> None:
    """Else the others would show nothing."""
    silent = {"cdi validate", "no command", "explain, stdin"}
    assert {name for name, (_, out, _) in well.items() if not out} <= silent
    assert not any("Traceback" in said for _, _, said in well.values())


@pytest.mark.parametrize(
    ("way", "why"),
    [("full stdout", "No space left on device"), ("closed stdout", "Bad file descriptor"), ("broken pipe", "")],
)
def test_output_that_cannot_be_written(machine: Machine, well: Outcomes, way: str, why: str) -> None:
    sentence = f"gpushim: standard output cannot be written: {why}\n" if why else ""
    for name, (code, _, said) in outcomes(machine, way).items():
        assert "Traceback" not in said, (name, said)
        if well[name][1]:
            assert code == (1 if why else 141), (name, said)
            assert said.endswith(sentence), (name, said)
        else:
            assert code == well[name][0], (name, said)


@pytest.mark.parametrize("way", ["full stderr", "closed stderr"])
def test_complaints_that_cannot_be_written(machine: Machine, well: Outcomes, way: str) -> None:
    """Nobody can be told, so what is done and the exit code are as ever."""
    for name, (code, out, _) in outcomes(machine, way).items():
        assert (code, out) == well[name][:2], name


def test_input_that_is_closed(machine: Machine, well: Outcomes) -> None:
    for name, (code, out, said) in outcomes(machine, "closed stdin").items():
        assert "Traceback" not in said, (name, said)
        assert code == well[name][0] or "stdin cannot be read: Bad file descriptor" in out + said, (name, out, said)


@pytest.mark.parametrize("program", ["nvidia-ctk", "nvidia-container-cli"])
@pytest.mark.parametrize("closed", [False, True])
def test_nvidias_names(program: str, closed: bool) -> None:
    end = ">&-" if closed else ">/dev/full"
    line = f"{every.REPOSITORY}/bin/{program} --help {end}"
    done = subprocess.run(["/bin/sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    why = "Bad file descriptor" if closed else "No space left on device"
    assert done.returncode == 1
    assert done.stderr.startswith(f"{program}: ")
    assert done.stderr.endswith(f": standard output cannot be written: {why}\n")
