"""The help of `gpushim` itself: commands in groups of what one wants, not in the alphabet's order.

Out of scope: the help of single commands, which is click's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTIONS = (
    ("Setting up", ("configure", "migrate", "config", "refresh", "cdi", "system", "completion")),
    ("Looking", ("list", "info", "ps")),
    ("When something is wrong", ("explain", "doctor")),
)
REST = "Other commands"


class Sections(click.Group):
    """A group whose help lists its commands in SECTIONS; a command that is in none comes last."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, as click does for one section."""
        for title, names in _parted(self.list_commands(ctx)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            shown = [(name, command) for name, command in commands if command and not command.hidden]
            width = formatter.width - 6 - max((len(name) for name, _ in shown), default=0)
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in shown])


def _parted(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    known = {name for _, listed in SECTIONS for name in listed}
    for title, listed in (*SECTIONS, (REST, sorted({*names} - known))):
        here = [name for name in listed if name in names]
        if here:
            yield title, here
