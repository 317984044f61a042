"""What a terminal gets beside the answer, colours and a line while a command waits; and the help of commands."""

from __future__ import annotations

import threading

import click
import pytest
from click.testing import CliRunner, Result

from gpushim.cli import show
from unit.gpushim.cli.looking import run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "width", lambda *, error=False: 80)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_no_terminal_gets_a_colour() -> None:
    assert show.colored("broken", "red") == "broken"


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_colours() -> None:
    assert show.colored("broken", "red") == "\x1b[31mbroken\x1b[0m"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert show.colored("broken", "red") == "broken"


@pytest.mark.usefixtures("terminal")
def test_a_line_tells_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    told = threading.Event()
    monkeypatch.setattr(show, "WAIT", 0.0)

    def echo(words: str, **_: bool) -> None:
        lines.append(words)
        told.set()

    monkeypatch.setattr(click, "echo", echo)
    with show.progress("listing the GPUs"):
        assert told.wait(30)
    assert lines == ["listing the GPUs ..."]


@pytest.mark.usefixtures("terminal")
def test_what_ends_at_once_tells_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(show, "WAIT", 3600.0)
    with show.progress("listing the GPUs"):
        pass
    assert capsys.readouterr().err == ""


@click.command()
@show.format_option("table", "csv", "json")
def command(form: str) -> None:
    """Print the form."""
    click.echo(form)


@pytest.mark.parametrize(
    ("words", "form"), [([], "table"), (["--json"], "json"), (["--format=csv"], "csv"), (["--format=json"], "json")]
)
def test_forms(words: list[str], form: str) -> None:
    result: Result = CliRunner().invoke(command, words)
    assert result.stdout == f"{form}\n"


def group(*names: str) -> click.Group:
    main = show.Sections("gpushim")
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
    names = [name for _, listed in show.SECTIONS for name in listed]
    assert len(names) == len(set(names))
