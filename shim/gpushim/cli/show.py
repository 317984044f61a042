"""What commands print: their help, sentences and tables for people, JSON or CSV for programs.

No word is ever broken, and nothing that could be a path is shortened: where a terminal is too narrow for a table's
rows, each becomes a block of lines with one cell each. Elsewhere a row is a line, which grep finds.
Much of the text comes from processes, images and files of others. It goes through `visible`, or it would tell the
terminal what to do, and it cannot look like our own lines: several blanks, which separate columns, are escaped, and
on a terminal lines are broken here, at blanks alone, with a mark in front of the continuation (CONTINUED). JSON and
CSV are for programs, and whole.
In the help of a group each command has a whole sentence, which click would cut to the line; click also takes no
terminal for narrower than 50 columns.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from gpushim.ground.errors import shortened, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LEAST = 20  # columns that a sentence gets, however narrow the terminal
CONTINUED = "  | "  # in front of a continuation, and of no line of ours
PADDED = 120  # characters up to which the cells of a column are made equally long
SECTIONS = (  # of the help of `gpushim` itself
    ("Setting up", ("configure", "migrate", "config", "refresh", "mig", "cdi", "system", "completion")),
    ("Looking", ("list", "info", "ps", "device-plugin", "labels")),
    ("When something is wrong", ("explain", "doctor")),
)
REST = "Other commands"
SENTENCE = 1000  # characters
WAIT = 1.0  # seconds after which a command writes to a terminal that it is still at work
_AS_JSON = "gpushim.json"
_PART = re.compile(r" *[^ ]+")
_BLANKS = re.compile(r"  +|^ | $")
_QUOTED = re.compile(r"""(?<!\w)(['"])[^'"]* [^'"]*\1""")


def format_option(*forms: str) -> Callable[[Any], Any]:
    """Return the click options --json and --format, of these forms, such as "table" and "json", the default first."""

    def as_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[_AS_JSON] = value

    def chosen(ctx: click.Context, _: click.Parameter, form: str) -> str:
        return "json" if ctx.meta.get(_AS_JSON) else form

    def add(command: Any) -> Any:
        command = click.option(
            "--json", is_flag=True, is_eager=True, expose_value=False, callback=as_json, help="As --format=json."
        )(command)
        return click.option(
            "--format", "form", type=click.Choice(forms), default=forms[0], callback=chosen, help="How to print it."
        )(command)

    return add


def say(line: str = "", *, first: str = "", error: bool = False) -> None:
    """Print a line, on a terminal broken at blanks; `first` is put before a line, which may be foreign text."""
    _put(_cell(line), first, error=error)


def text(lines: str) -> None:
    """Print text of several lines as they are, such as a diff or commands; tabs stay."""
    for line in lines.removesuffix("\n").split("\n") if lines else ():
        click.echo(visible(line, "\t"))


def emit(form: str, data: object, columns: Sequence[str] = (), rows: Sequence[Sequence[object]] = ()) -> None:
    """Print a result as "table", "json" (`data`) or "csv"; None is an empty cell."""
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if cell is None else visible(str(cell)) for cell in row])
    else:
        table(columns, rows)


def width(*, error: bool = False) -> int | None:
    """Return the columns of the terminal that stdout, or stderr, is connected to; None if there is none."""
    stream = sys.stderr if error else sys.stdout
    if not stream.isatty():
        return None
    import shutil  # with three ways of compression

    try:
        return os.get_terminal_size(stream.fileno()).columns or shutil.get_terminal_size().columns
    except OSError:
        return shutil.get_terminal_size().columns


def command(words: str, label: str) -> None:
    """Print a command, or sentence, to be copied in one piece, with a label in front; the terminal wraps it.

    A quoted word with blanks, such as a foreign file name, could look like our own lines when wrapped. A command with
    one is broken as a sentence is.
    """
    columns, line = width(), label + visible(words)
    if columns and _columns(line) > columns and _QUOTED.search(words):
        say(words, first=label)
    else:
        click.echo(line)


def colored(words: str, color: str) -> str:
    """Return words in a colour for a terminal at stdout, unless NO_COLOR is set (https://no-color.org)."""
    plain = width() is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return words if plain else click.style(words, fg=color)


@contextlib.contextmanager
def progress(words: str) -> Iterator[None]:
    """Print to a terminal at stderr what the block waits for, unless it ends within WAIT."""
    if width(error=True) is None:
        yield
        return
    timer = threading.Timer(WAIT, click.echo, (f"{words} ...",), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, None as an empty cell: aligned lines, or blocks where those do not fit on the terminal."""
    widths = [0] * len(columns)
    for line in (columns, *rows):
        for column, length in enumerate(len(_cell(cell)) for cell in line):
            widths[column] = max(widths[column], length if length <= PADDED else 0)
    room = width()
    if room is None or all(_columns(_aligned(line, widths)) <= room for line in (columns, *rows)):
        for line in (columns, *rows):
            click.echo(_aligned(line, widths))
    elif len(columns) <= 2:
        for line in (columns, *rows):
            first = "" if len(line) == 1 else _aligned(line[:1], widths).ljust(widths[0]) + "  "
            _put(_cell(line[-1]), first)
    else:
        label = max(map(len, columns))
        for row in rows:
            for head, cell in zip(columns, row):
                if text := _cell(cell):
                    _put(text, f"{head:{label}}  ")
            click.echo()


def _aligned(line: Sequence[object], widths: list[int]) -> str:
    return "  ".join(_cell(cell).ljust(width) for cell, width in zip(line, widths)).rstrip()


def _cell(cell: object) -> str:
    """Return a cell or sentence: bounded, without controls and without blanks that could part it into columns."""
    text = shortened(visible(shortened("" if cell is None else str(cell))))
    return _BLANKS.sub(lambda blanks: "\\x20" * len(blanks[0]), text)


def _put(words: str, first: str, *, error: bool = False) -> None:
    """Print a result of `_cell`, on a terminal broken; `first` is put before its first word."""
    columns = width(error=error)
    for line in [first + words] if columns is None else _broken(words, first, columns):
        click.echo(line, err=error)


def _broken(words: str, first: str, columns: int) -> Iterator[str]:
    room = max(columns, len(CONTINUED) + LEAST)
    line, length, empty = first, _columns(first), True
    for part in _PART.findall(words):
        if not empty and length + _columns(part) > room:
            yield line
            line, length, part = CONTINUED, len(CONTINUED), part.lstrip(" ")
        line, length, empty = line + part, length + _columns(part), False
    yield line


def _columns(text: str) -> int:
    """Return the most columns that text can take: no terminal gives a character more than two."""
    return len(text) if text.isascii() else sum(1 if letter.isascii() else 2 for letter in text)


class _Formatter(click.HelpFormatter):
    """Help as wide as the terminal, up to click's 80 columns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        import shutil  # as in `width`

        self.width = min(self.width, max(shutil.get_terminal_size().columns - 2, LEAST))


click.Context.formatter_class = _Formatter  # that of all commands, whoever makes their contexts


class Commands(click.Group):
    """A group whose help describes each command in a whole sentence, and which suggests similar names."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches  # only for a mistyped command

            names = [] if args[0].startswith("-") else get_close_matches(args[0], self.list_commands(ctx))
            commands = {name: self.get_command(ctx, name) for name in names}
            near = [name for name, command in commands.items() if command and not command.hidden]
            if not near:
                raise
            message = f"No such command {args[0]!r}; did you mean {' or '.join(near)}?"
            raise click.UsageError(message, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.parted(self.list_commands(ctx)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, row.get_short_help_str(SENTENCE)) for name, row in commands if row and not row.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def parted(self, names: list[str]) -> Iterator[tuple[str, list[str]]]:
        yield "Commands", names


class Sections(Commands):
    """A group whose help lists its commands in SECTIONS, and others last."""

    def parted(self, names: list[str]) -> Iterator[tuple[str, list[str]]]:
        listed_names = {name for _, listed in SECTIONS for name in listed}
        for title, listed in (*SECTIONS, (REST, sorted({*names} - listed_names))):
            present = [name for name in listed if name in names]
            if present:
                yield title, present
