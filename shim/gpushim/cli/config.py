"""`gpushim config`: the configuration in force."""

from __future__ import annotations

import json
from typing import Any

import click

from gpushim.cli import show
from gpushim.cli.sections import Commands
from gpushim.config import policy
from gpushim.ground import system


@click.group(cls=Commands)
def config() -> None:
    """Show and check the configuration, config.toml."""


@config.command("show")
@show.format_option("table", "json")
def show_config(form: str) -> None:
    """Show every setting with its value, and whether config.toml, the profile or the default says so."""
    path = system.config_path()
    given = policy.given(path) or {}
    settings: Any = policy.load(path)  # by names that are data
    rows = [
        (f"{section}.{key}", value, _source(given, section, key, path))
        for section, entries in settings.items()
        for key, value in entries.items()
    ]
    data = {name: {"value": value, "from": source} for name, value, source in rows}
    show.emit(form, data, ("SETTING", "VALUE", "FROM"), [[name, json.dumps(value), by] for name, value, by in rows])


@config.command()
def check() -> None:
    """Say whether config.toml is right, on this host, and name what is not; exits with 15 if it is wrong."""
    path = system.config_path()
    found = policy.given(path)
    policy.check_directories(policy.load(path)["driver"], path)
    if found is None:
        show.say(f"{path} does not exist; all settings have their defaults")
    else:
        show.say(f"{path} is right")


@config.command()
def path() -> None:
    """Show where config.toml is, or would be."""
    show.say(system.config_path())


def _source(given: dict[str, Any], section: str, key: str, path: str) -> str:
    entries = given.get(section, {})
    profile = given.get("requests", {}).get("profile", "default")
    if key in entries and (section, key) != ("driver", "dev-root"):
        return path
    if (section, key) == ("driver", "dev-root"):
        return path if entries.get(key) else "driver.root"
    return f"profile {profile}" if key in policy.PROFILES[profile].get(section, {}) else "default"
