"""`gpushim completion`: what a shell needs to complete gpushim's words."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For one session of bash: eval "$(gpushim completion bash)". For all: put the script where the shell looks for
    such, for example /usr/share/bash-completion/completions/gpushim.
    """
    name = "gpushim"
    click.echo(SHELLS[shell](ctx.find_root().command, {}, name, f"_{name.upper()}_COMPLETE").source())
