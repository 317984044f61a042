"""`gpushim migrate`: from NVIDIA's container toolkit to gpushim."""

from __future__ import annotations

import json
from typing import Any

import click

from gpushim.cli import show
from gpushim.engines.settings import files
from gpushim.ground import system
from gpushim.nvidia.migrate import migrate as moving
from gpushim.nvidia.migrate import migrate_engines

COLUMNS = ("SETTING", "VALUE", "BECOMES")


@click.command()
@click.option("--from", "source", default="", metavar="FILE", help="NVIDIA's config.toml, if it is elsewhere.")
@click.option("--write", is_flag=True, help="Write config.toml; without it, the change is only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the change, which is what happens without --write.")
@show.format_option("table", "json")
def migrate(source: str, write: bool, dry_run: bool, form: str) -> None:
    """Take over the settings of NVIDIA's container toolkit.

    Shows what each setting of its config.toml becomes in gpushim's, or why it becomes nothing, and for each engine
    that names NVIDIA's runtime the command that names gpushim's instead. NVIDIA's files stay as they are. config.toml
    keeps its comments; as it was, it is kept beside itself with .before-gpushim behind its name. Where a setting is
    left out, because nothing here does the same, the others are taken over all the same and the exit code is 17.
    Settings of NVIDIA's device plugin need no translation: gpushim's reads its flags, variables and file.
    """
    if write and dry_run:
        raise click.UsageError("--write and --dry-run exclude each other")
    config = system.config_path()
    plan = moving.plan_migration(source or moving.find_source(), config)
    engines = migrate_engines.find_rows()
    if form == "json":
        data = {
            "source": plan.source or None,
            "config": config,
            "settings": _settings(plan.rows),
            "warnings": plan.warnings,
            "engines": [{"key": row.key, "value": row.value, "becomes": row.becomes} for row in engines],
            "diff": files.diff(plan.changes),
            "written": write and bool(plan.changes),
        }
        click.echo(json.dumps(data, indent=2, default=str))
    else:
        _print(plan, engines, config, write)
    if write:
        for note in files.apply(plan.changes):
            click.echo(f"note: {note}", err=True)
    moving.check_complete(plan.rows, plan.source, "take it out there")


def _settings(rows: list[moving.Row]) -> list[dict[str, Any]]:
    return [{"key": row.key, "value": row.value, "becomes": row.becomes, "left-out": row.left_out} for row in rows]


def _print(plan: moving.Plan, engines: list[moving.Row], config: str, write: bool) -> None:
    if plan.source:
        show.say(f"{plan.source}:")
        show.table(COLUMNS, [[row.key, json.dumps(row.value, default=str), row.becomes] for row in plan.rows])
    else:
        show.say("there is no config.toml of NVIDIA's container toolkit, so there is nothing to take over")
    if engines:
        show.say()
        show.say("engines:")
        show.table(COLUMNS, [[row.key, json.dumps(row.value), row.becomes] for row in engines])
    for sentence in plan.warnings:
        show.say(f"warning: {sentence}", error=True)
    show.say()
    if not plan.changes:
        show.say(f"{config}: nothing to change")
    elif write:
        show.say(f"changed {config}")
    else:
        show.text(files.diff(plan.changes))
        show.say("nothing is written yet; --write does it", error=True)
