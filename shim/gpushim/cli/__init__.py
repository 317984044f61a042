"""The command line for people: `gpushim COMMAND`, one command per file of this package.

Out of scope: the create and hook paths, which import nothing from here.
"""

from __future__ import annotations

import click

from gpushim import __version__
from gpushim.cli.refresh import refresh
from gpushim.errors import GpushimError


class _Commands(click.Group):
    """Commands that say a GpushimError as its one sentence and exit with its code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except GpushimError as error:
            click.echo(f"gpushim: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="gpushim %(version)s")
def main() -> None:
    """Give containers the NVIDIA GPUs they ask for."""


main.add_command(refresh)
