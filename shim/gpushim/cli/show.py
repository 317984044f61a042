"""How commands show what they found: a table for people, JSON or CSV for programs.

Nothing is ever shortened or broken: where a terminal is too narrow for a table's rows, each becomes a block of lines
with one cell each, and a cell that is longer than a line is the terminal's to wrap, so that what is copied is whole.
Elsewhere a row is a line, which grep finds. All text goes through `visible`: much of it comes from processes, images
and files of others, and would else tell the terminal what to do. JSON escapes by itself.
Out of scope: what is shown.
"""

from __future__ import annotations

import io
import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from gpushim.errors import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAST = 20  # columns that a sentence gets, however narrow the terminal


def format_option(*forms: str) -> Callable[[Any], Any]:
    """Return the click option --format.

    Args:
        forms: what it takes, the default first, such as "table" and "json".
    """
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], help="How to print it.")


def say(line: str = "", *, error: bool = False) -> None:
    """Print a line.

    Args:
        line: with whatever others wrote in it.
        error: whether it goes to stderr.
    """
    click.echo(visible(line), err=error)


def text(lines: str) -> None:
    """Print text of several lines, such as a diff; tabs stay."""
    for line in lines.removesuffix("\n").split("\n") if lines else ():
        click.echo(visible(line, "\t"))


def emit(form: str, data: object, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print what a command found.

    Args:
        form: "table", "json" or "csv".
        data: what JSON says.
        columns: heads of the table.
        rows: its cells; None is an empty one.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    elif form == "csv":
        import csv

        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerows([list(columns), *([visible(cell) for cell in row] for row in cells)])
        click.echo(written.getvalue(), nl=False)
    else:
        table(columns, cells)


def width() -> int | None:
    """Return the columns of the terminal that is written to; None if it is no terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil  # with three ways of compression

    return shutil.get_terminal_size().columns


def prose(words: str, indent: str = "") -> None:
    """Print a sentence, on a terminal wrapped at blanks alone."""
    columns = width()
    if columns is None:
        say(indent + words)
        return
    room = max(columns - len(indent), LEAST)
    for line in textwrap.wrap(visible(words), room, break_long_words=False, break_on_hyphens=False):
        say(indent + line)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: aligned lines, or blocks where those do not fit on the terminal.

    Args:
        columns: its heads.
        rows: its cells.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    room = width()
    if room is not None and len(columns) > 2 and max(map(len, shown)) > room:
        label = max(map(len, columns))
        blocks = [[(head, cell) for head, cell in zip(columns, row) if cell] for row in rows]
        shown = ["\n".join(f"{head:{label}}  {cell}" for head, cell in block) + "\n" for block in blocks]
    for line in shown:
        click.echo(line)
