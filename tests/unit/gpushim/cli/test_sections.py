"""What `gpushim --help` looks like, and what shells get."""

from __future__ import annotations

import subprocess

import click
import pytest

from gpushim.cli.completion import completion
from gpushim.cli.sections import SECTIONS, Sections
from unit.gpushim.cli.looking import run

BASH = "/bin/bash"


def group(*names: str) -> click.Group:
    main = Sections("gpushim")
    for name in names:
        main.add_command(click.Command(name, help=f"Do {name}."))
    main.add_command(click.Command("secret", hidden=True))
    return main


def test_commands_stand_in_sections() -> None:
    lines = [line.strip() for line in run(group("zoo", "ps", "list", "doctor"), "--help").stdout.splitlines()]
    assert lines[lines.index("Looking:") :] == [
        "Looking:", "list  Do list.", "ps    Do ps.", "",
        "When something is wrong:", "doctor  Do doctor.", "",
        "Other commands:", "zoo  Do zoo.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("doctr", "No such command 'doctr'; did you mean doctor?"),
        ("lits", "No such command 'lits'; did you mean list?"),
        ("secre", "No such command 'secre'"),
        ("frob", "No such command 'frob'"),
        ("--lits", "No such option"),
    ],
)
def test_what_may_be_meant(word: str, says: str) -> None:
    done = run(group("list", "doctor"), word, code=2)
    assert says in done.stderr
    assert ("did you mean" in done.stderr) == ("did you mean" in says)


def test_no_command_is_in_two_sections() -> None:
    names = [name for _, listed in SECTIONS for name in listed]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_completion(shell: str, words: str) -> None:
    main = group()
    main.add_command(completion)
    out = run(main, "completion", shell).stdout
    assert words in out
    assert f"_GPUSHIM_COMPLETE={shell}_complete" in out


def test_completion_of_nvidia_ctk() -> None:
    main = group()
    main.add_command(completion)
    assert "_NVIDIA_CTK_COMPLETE=bash_complete" in run(main, "completion", "bash", "--program=nvidia-ctk").stdout


def test_bash_takes_its_script() -> None:
    main = group()
    main.add_command(completion)
    script = run(main, "completion", "bash").stdout
    subprocess.run([BASH, "-n"], input=script, text=True, check=True)


def test_other_shells_are_refused() -> None:
    run(completion, "tcsh", code=2)
