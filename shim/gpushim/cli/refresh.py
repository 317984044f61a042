"""`gpushim refresh`: list the host's GPUs and driver files anew."""

from __future__ import annotations

import json

import click

from gpushim.cli import show
from gpushim.errors import GpushimError
from gpushim.inventory import refresh as inventory


@click.command()
@click.option("--force", is_flag=True, help="List even if nothing seems to have changed.")
@show.format_option("text", "json")
def refresh(force: bool, form: str) -> None:
    """List this host's GPUs, MIG instances and driver files for the containers to come.

    A create does it by itself when the host has changed since; doing it at boot and after a driver upgrade saves
    the first container the wait.
    """
    snapshot = inventory.refresh(force)
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    version, notes = snapshot["driver"]["version"], snapshot["notes"]
    gpus, migs = len(snapshot["gpus"]), len(snapshot["mig"])
    if form == "json":
        click.echo(json.dumps({"gpus": gpus, "mig": migs, "driver": version, "notes": notes}, indent=2))
        return
    for note in notes:
        show.say(f"note: {note}", error=True)
    show.say(f"{gpus} GPUs and {migs} MIG instances, driver {version or 'of unknown version'}")
