"""How commands show what they found: a table for people, JSON or CSV for programs.

A table is drawn by rich on a terminal, and plain aligned text elsewhere. All text goes through `visible`: much of it
comes from processes, images and files of others, and would else tell the terminal what to do. JSON escapes by itself.
Out of scope: what is shown.
"""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gpushim.errors import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([list(columns), *([visible(cell) for cell in row] for row in cells)])
    else:
        table(columns, cells)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with rich on a terminal, else as plain aligned text.

    Args:
        columns: its heads.
        rows: its cells.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        try:
            _draw(columns, rows)
        except ImportError:
            pass  # plain text will do
        else:
            return
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(column)
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))  # never markup: cells are others' text
    Console().print(drawn)
