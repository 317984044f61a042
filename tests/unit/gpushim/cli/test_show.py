"""What a terminal gets beside the answer: colours, and a line while a command waits."""

from __future__ import annotations

import threading

import click
import pytest
from click.testing import CliRunner, Result

from gpushim.cli import show


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
