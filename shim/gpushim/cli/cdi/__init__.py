"""`gpushim cdi`: specs written and looked at; one command per file."""

from __future__ import annotations

import click

from gpushim.cli.cdi.generate import generate
from gpushim.cli.cdi.list import list_devices
from gpushim.cli.cdi.transform import transform
from gpushim.cli.cdi.validate import validate
from gpushim.cli.show import Commands


@click.group(cls=Commands)
def cdi() -> None:
    """Describe GPUs in CDI specs, and look at anyone's."""


cdi.add_command(generate)
cdi.add_command(list_devices, "list")
cdi.add_command(transform)
cdi.add_command(validate)
