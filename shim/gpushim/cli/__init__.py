"""The command line for people: one command per file."""

from __future__ import annotations

from importlib import import_module

import click

from gpushim import __version__
from gpushim.cli.program import Program
from gpushim.cli.show import Sections

# Imported when they are called: most need what the others do without.
COMMANDS = {
    "cdi": "gpushim.cli.cdi:cdi",
    "completion": "gpushim.cli.completion:completion",
    "config": "gpushim.cli.config:config",
    "configure": "gpushim.cli.configure:configure",
    "device-plugin": "gpushim.cli.device_plugin:device_plugin",
    "doctor": "gpushim.cli.doctor:doctor",
    "explain": "gpushim.cli.explain:explain",
    "info": "gpushim.cli.info:info",
    "labels": "gpushim.cli.labels:labels",
    "list": "gpushim.cli.list:list_gpus",
    "mig": "gpushim.cli.mig:mig",
    "migrate": "gpushim.cli.migrate:migrate",
    "ps": "gpushim.cli.ps:ps",
    "refresh": "gpushim.cli.refresh:refresh",
    "system": "gpushim.cli.system:nodes",
}


class _Commands(Program, Sections):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group("gpushim", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="gpushim %(version)s")
def main() -> None:
    """Give containers the NVIDIA GPUs they ask for."""
