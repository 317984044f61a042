"""`gpushim refresh`: list the host's GPUs and driver files anew."""

from __future__ import annotations

import click

from gpushim.errors import GpushimError
from gpushim.inventory import refresh as inventory


@click.command()
@click.option("--force", is_flag=True, help="List even if nothing seems to have changed.")
def refresh(force: bool) -> None:
    """List this host's GPUs, MIG instances and driver files for the containers to come.

    A create does it by itself when the host has changed since; doing it at boot and after a driver upgrade saves
    the first container the wait.
    """
    snapshot = inventory.refresh(force)
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    for note in snapshot["notes"]:
        click.echo(f"note: {note}", err=True)
    gpus, migs = len(snapshot["gpus"]), len(snapshot["mig"])
    click.echo(
        f"{gpus} GPUs and {migs} MIG instances, driver {snapshot['driver']['version'] or 'of unknown version'}"
    )
