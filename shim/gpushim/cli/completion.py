"""`gpushim completion`: what a shell needs to complete the words of gpushim and nvidia-ctk."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
PROGRAMS = ("gpushim", "nvidia-ctk")


@click.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
@click.option(
    "--program", type=click.Choice(PROGRAMS), default=PROGRAMS[0], help="Program whose words are completed."
)
@click.pass_context
def completion(ctx: click.Context, shell: str, program: str) -> None:
    """Print the completion script of a shell.

    For one session of bash: eval "$(gpushim completion bash)". For all: put the script where the shell looks for
    such, for example /usr/share/bash-completion/completions/gpushim.
    """
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    click.echo(SHELLS[shell](ctx.find_root().command, {}, program, variable).source())
