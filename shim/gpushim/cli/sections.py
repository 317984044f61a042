"""The help of command groups: whole sentences, and for `gpushim` itself grouped by purpose.

click cuts such sentences to the line, and takes no terminal for narrower than 50 columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTIONS = (
    ("Setting up", ("configure", "migrate", "config", "refresh", "cdi", "system", "completion")),
    ("Looking", ("list", "info", "ps", "device-plugin", "labels")),
    ("When something is wrong", ("explain", "doctor")),
)
REST = "Other commands"
SENTENCE = 1000  # characters


class _Formatter(click.HelpFormatter):
    """Help as wide as the terminal, up to click's 80 columns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        import shutil  # as in show.py

        self.width = min(self.width, max(shutil.get_terminal_size().columns - 2, show.LEAST))


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
            visible = [(name, command) for name, command in commands if command and not command.hidden]
            if visible:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(SENTENCE)) for name, command in visible])

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
