"""`gpushim info`: the driver, its files, and the age of the snapshot."""

from __future__ import annotations

from typing import Any

import click

from gpushim import __version__
from gpushim.cli import show
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import present


@click.command()
@click.option("--files", is_flag=True, help="List the driver's files one by one.")
@show.format_option("table", "json")
def info(files: bool, form: str) -> None:
    """Show the driver's version, its files by capability, and how fresh this knowledge is."""
    config, state = system.config_path(), system.state_dir()
    inventory = present.snapshot(config, state)
    timestamp, holds = present.age(config, state)
    counted = {name: len(entries) for name, entries in sorted(inventory["files"].items()) if entries}
    about: dict[str, Any] = {
        "gpushim": __version__,
        "driver": inventory["driver"]["version"],
        "cuda": inventory["driver"]["cuda"],
        "driver_root": inventory["driver"]["root"],
        "platform": inventory["platform"],
        "source": inventory["source"],
        "gpus": len(inventory["gpus"]),
        "mig_instances": len(inventory["mig"]),
        "runtime": inventory["runtime"],
        "config": config,
        "snapshot": {"directory": state, "written": timestamp, "state": holds},
        "features": {name: paths for name, paths in inventory["features"].items() if paths},
        "files": inventory["files"] if files else counted,
        "notes": inventory["notes"],
        "error": inventory["error"],
    }
    if form == "json":
        show.emit(form, about, (), ())
    else:
        _print(about, inventory["files"] if files else None)
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])


def _print(about: dict[str, Any], files: dict[str, Any] | None) -> None:
    snapshot = about["snapshot"]
    age = f"written {snapshot['written']}, " if snapshot["written"] else ""
    rows = [
        ["gpushim", about["gpushim"]],
        ["driver", about["driver"] or "unknown"],
        ["CUDA", about["cuda"] or "unknown"],
        ["driver root", about["driver_root"]],
        ["platform", about["platform"]],
        ["GPUs", f"{about['gpus']}, {about['mig_instances']} MIG instances (listed by {about['source']})"],
        ["low-level runtime", about["runtime"] or "none"],
        ["configuration", about["config"]],
        ["snapshot", f"{snapshot['directory']}: {age}{snapshot['state']}"],
        *([f"feature {name}", " ".join(paths)] for name, paths in about["features"].items()),
        *(["note", note] for note in about["notes"]),
    ]
    show.table(("WHAT", "VALUE"), rows)
    if not about["files"]:
        return
    show.say()
    if files is None:
        counted = [[name, str(count)] for name, count in about["files"].items()]
        show.table(("CAPABILITY", "FILES"), counted)
    else:
        listed = [[name, file["kind"], file["path"]] for name, entries in sorted(files.items()) for file in entries]
        show.table(("CAPABILITY", "KIND", "PATH"), listed)
