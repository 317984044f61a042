"""`gpushim refresh`: list the host's GPUs and driver files again."""

from __future__ import annotations

import json

import click

from gpushim.cli import show
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.refresh import keep as keeping
from gpushim.refresh import on_demand as serving
from gpushim.refresh import refresh as inventory


@click.command()
@click.option("--force", is_flag=True, hidden=True, help="As without it: it always lists.")
@click.option(
    "--unattended",
    is_flag=True,
    help="As the systemd units do: list only if something has changed or may soon have, when the driver's files and "
    "modules have come to rest, and take as long as it takes.",
)
@click.option(
    "--asked",
    is_flag=True,
    help="For gpushim-refresh.socket: list once for the containers that are being created and have asked for it, if "
    "something has changed.",
)
@click.option("--no-modules", is_flag=True, help="Load no kernel module.")
@click.option(
    "--keep",
    is_flag=True,
    help="Go on until a signal comes: list again whenever something has changed or may soon have, as the systemd "
    "units do where there are any. For gpushim-refresh-keep.service, gpushim-node, and hosts with another init.",
)
@click.option(
    "--accept-indices",
    "accept",
    is_flag=True,
    help="Number the GPUs as NVML does now. Without it, an index means the same GPU from the first listing after a "
    "boot until the next boot, and none while that GPU is missing.",
)
@show.format_option("text", "json")
def refresh(
    force: bool, unattended: bool, asked: bool, no_modules: bool, keep: bool, accept: bool, form: str
) -> None:
    """List this host's GPUs, MIG instances and driver files for the containers to come.

    If the host has changed since, this happens by itself when a container is created that asks for a GPU; doing it
    at boot and after a driver upgrade saves the first container the wait. If a GPU or NVML fails, what can be listed
    is saved, and the exit code says so: a later try may find more.
    """
    if keep or asked:
        if unattended or no_modules or accept or form != "text" or (keep and asked):
            raise click.UsageError(
                f"--{'keep' if keep else 'asked'} cannot be combined with other options; omit them"
            )
        _keep() if keep else serving.serve()
        return
    if unattended and accept:
        raise click.UsageError("--accept-indices cannot be combined with --unattended; omit one of them")
    load = not no_modules
    if unattended:
        snapshot = inventory.unattended(load)
    else:
        with show.progress("listing the GPUs"):
            snapshot = inventory.refresh(force=True, load=load, accept=accept, people=True)
    if snapshot is None:
        logs.logger.info("nothing is listed: the GPUs are released until gpushim device-plugin take")
        return
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    if accept and snapshot["source"] != "nvml":
        reason = next(iter(snapshot["notes"]), "NVML cannot be used")
        raise GpushimError(f"the GPUs' indices stay as they were, because NVML reports no order: {reason}", INVENTORY)
    version, notes = snapshot["driver"]["version"], snapshot["notes"]
    gpus, migs = len(snapshot["gpus"]), len(snapshot["mig"])
    if form == "json":
        click.echo(json.dumps({"gpus": gpus, "mig": migs, "driver": version, "notes": notes}, indent=2))
    elif not unattended:  # the log has the notes, and all that there is to say of the units' refreshes
        absent = ", ".join(f"GPU {gpu['index']}" for gpu in snapshot["absent"])
        suffix = f"; missing since the first look of this boot: {absent}" if absent else ""
        show.say(f"{gpus} GPUs and {migs} MIG instances, driver {version or 'of unknown version'}{suffix}")
    problem = inventory.problem(snapshot)
    if problem:
        raise GpushimError(f"not all could be listed: {problem}; when that is fixed, run gpushim refresh", INVENTORY)


def _keep() -> None:
    log = policy.load(system.config_path())["log"]
    logs.start(log["format"], log["level"])
    keeping.keep()
