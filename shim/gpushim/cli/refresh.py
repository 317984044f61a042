"""`gpushim refresh`: list the host's GPUs and driver files anew."""

from __future__ import annotations

import json

import click

from gpushim.cli import show
from gpushim.errors import INVENTORY, GpushimError
from gpushim.inventory import refresh as inventory
from gpushim.inventory import survey


@click.command()
@click.option("--force", is_flag=True, hidden=True, help="As without it: it always lists.")
@show.format_option("text", "json")
def refresh(force: bool, form: str) -> None:
    """List this host's GPUs, MIG instances and driver files for the containers to come.

    A create does it by itself when the host has changed since; doing it at boot and after a driver upgrade saves
    the first container the wait. It fails if a GPU or NVML does, for then a later try may find more.
    """
    snapshot = inventory.refresh(force=True)
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    version, notes = snapshot["driver"]["version"], snapshot["notes"]
    gpus, migs = len(snapshot["gpus"]), len(snapshot["mig"])
    if form == "json":
        click.echo(json.dumps({"gpus": gpus, "mig": migs, "driver": version, "notes": notes}, indent=2))
    else:
        for note in notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"{gpus} GPUs and {migs} MIG instances, driver {version or 'of unknown version'}")
    trouble = survey.trouble(snapshot)
    if trouble:
        raise GpushimError(f"not all could be listed: {trouble}; when that is mended, run gpushim refresh", INVENTORY)
