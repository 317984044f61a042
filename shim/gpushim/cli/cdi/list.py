"""`gpushim cdi list`: the devices that CDI specs describe."""

from __future__ import annotations

import json
import os

import click

from gpushim.cdi import specs
from gpushim.cli import show
from gpushim.cli.cdi import output


@click.command()
@click.option(
    "--spec-dir",
    "directories",
    multiple=True,
    callback=output.words,
    envvar=output.SPEC_DIRS_VARIABLE,
    help="Directory of specs; several, or with commas: the last counts most. [default: [cdi] spec-dirs]",
)
@show.format_option("text", "json")
def list_devices(directories: list[str], form: str) -> None:
    """List the devices that can be asked for, sorted, one per line."""
    documents, problems = specs.load(output.spec_dirs(directories))
    hits_by_name: dict[str, list[tuple[int, str]]] = {}
    for path, priority, document in documents:
        for device in document["devices"]:
            hits_by_name.setdefault(f"{document['kind']}={device['name']}", []).append((priority, path))
    devices: dict[str, str] = {}
    for name, hits in sorted(hits_by_name.items()):
        best = [path for priority, path in hits if priority == max(hits)[0]]
        if len(best) > 1:
            problems.append(f"{name} is in both {' and '.join(best)}, so it cannot be used; remove one of them")
        else:
            devices[name] = os.path.normpath(best[0])
    for problem in problems:
        show.say(f"warning: {problem}", error=True)
    show.say(f"Found {len(devices)} CDI devices", error=True)
    if form == "json":
        click.echo(json.dumps([{"name": name, "spec": path} for name, path in devices.items()]))
    else:
        for name in devices:
            show.say(name)
