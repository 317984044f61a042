"""What shells get of `gpushim completion`."""

from __future__ import annotations

import subprocess

import click
import pytest

from gpushim.cli.completion import completion
from unit.gpushim.cli.looking import run

BASH = "/bin/bash"


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_completion(shell: str, words: str) -> None:
    main = click.Group("gpushim")
    main.add_command(completion)
    out = run(main, "completion", shell).stdout
    assert words in out
    assert f"_GPUSHIM_COMPLETE={shell}_complete" in out


def test_completion_of_nvidia_ctk() -> None:
    main = click.Group("gpushim")
    main.add_command(completion)
    assert "_NVIDIA_CTK_COMPLETE=bash_complete" in run(main, "completion", "bash", "--program=nvidia-ctk").stdout


def test_bash_takes_its_script() -> None:
    main = click.Group("gpushim")
    main.add_command(completion)
    script = run(main, "completion", "bash").stdout
    subprocess.run([BASH, "-n"], input=script, text=True, check=True)


def test_other_shells_are_refused() -> None:
    run(completion, "tcsh", code=2)
