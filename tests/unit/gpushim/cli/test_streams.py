"""Every command with standard streams that cannot be used: one sentence or none, never a traceback."""

from __future__ import annotations

import re
import subprocess

import click
import pytest
from click.testing import CliRunner

from gpushim.cli.program import Program
from sample import share
from unit.gpushim.cli import every, streamed
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow
ALL = {**every.WAYS, **every.MORE}
Outcomes = dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return every.host(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def well(machine: Machine) -> Outcomes:
    return outcomes(machine, "well")


def outcomes(machine: Machine, way: str) -> Outcomes:
    names = [*ALL] if way == "well" else share(ALL, 2)
    found = every.run(machine, way, [ALL[name].words(machine) for name in names])
    moment = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z|(?<=gfd.timestamp=)\d+")
    return {name: (code, moment.sub("TIME", out), said) for name, (code, out, said) in zip(names, found)}


def test_no_command_is_left_out() -> None:
    assert set(every.WAYS) == set(every.names())


def test_what_is_well(well: Outcomes) -> None:
    """Else the others would show nothing."""
    silent = {"cdi validate", "no command", "explain, stdin"}
    silent |= {name for name in every.WAYS if name.startswith("device-plugin ")}
    assert {name for name, (_, out, _) in well.items() if not out} <= silent
    assert not any("Traceback" in said for _, _, said in well.values())


@pytest.mark.parametrize(
    ("way", "why"),
    [("full stdout", "No space left on device"), ("closed stdout", "Bad file descriptor"), ("broken pipe", "")],
)
def test_output_that_cannot_be_written(machine: Machine, well: Outcomes, way: str, why: str) -> None:
    sentence = f": standard output cannot be written: {why}\n" if why else ""
    for name, (code, _, said) in outcomes(machine, way).items():
        assert "Traceback" not in said, (name, said)
        if well[name][1]:
            assert code == (1 if why else 141), (name, said)
            program = "gpushim-device-plugin" if name == "labels" else "gpushim"  # which it becomes
            assert said.endswith(sentence and program + sentence), (name, said)
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


@pytest.mark.parametrize("way", streamed.PLACES)
def test_directories_that_are_not_there(machine: Machine, well: Outcomes, way: str) -> None:
    """No command needs them when its paths are absolute; the doctor alone tells what it cannot try."""
    for name, (code, _, said) in outcomes(machine, way).items():
        assert "Traceback" not in said, (name, said)
        assert code == well[name][0], (name, said)


RELATIVE = {
    "cdi generate": ["--output=x.json"],
    "configure docker": ["--config=x", "--dry-run"],
    "doctor": ["--report=x"],
    "explain": ["."],
    "migrate": ["--from=x"],
}


def test_a_relative_path_in_a_directory_that_is_gone(machine: Machine) -> None:
    lines = [[*name.split(), *words] for name, words in RELATIVE.items()]
    for name, (code, _, said) in zip(RELATIVE, every.run(machine, "deleted directory", lines)):
        assert code in (1, 14), (name, said)
        assert re.fullmatch("gpushim: .*(is gone|cannot be read|cannot be written|is not there).*\n", said), name


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied", "/a"), "cannot go on: /a: Permission denied"),
        (OSError(5, "Input/output error"), "cannot go on: Input/output error"),
        (OSError("odd"), "cannot go on: odd"),
    ],
)
def test_what_the_kernel_refuses_is_a_sentence(error: OSError, sentence: str) -> None:
    def fail() -> None:
        raise error

    command = Program("gpushim", {"fail": click.Command("fail", callback=fail)})
    done = CliRunner().invoke(command, ["fail"])
    assert (done.exit_code, done.output) == (1, f"gpushim: {sentence}\n")


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
