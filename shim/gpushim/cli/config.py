"""`gpushim config`: the configuration in force."""

from __future__ import annotations

import json
from typing import Any

import click

from gpushim.cli import show
from gpushim.config import policy
from gpushim.ground import system


@click.group(cls=show.Commands)
def config() -> None:
    """Show and check the configuration, config.toml."""


@config.command("show")
@show.format_option("table", "json")
def show_config(form: str) -> None:
    """Show every setting with its value, and whether config.toml, the profile or the default says so."""
    path = system.config_path()
    sections = policy.given(path) or {}
    settings: Any = policy.load(path)  # by names that are data
    rows = [
        (f"{section}.{key}", value, _source(sections, section, key, path))
        for section, entries in settings.items()
        for key, value in entries.items()
    ]
    data = {name: {"value": value, "from": source} for name, value, source in rows}
    show.emit(form, data, ("SETTING", "VALUE", "FROM"), [[name, json.dumps(value), by] for name, value, by in rows])


@config.command()
def check() -> None:
    """Check config.toml on this host, and name what is wrong; exits with 15 if it is not right."""
    path = system.config_path()
    sections = policy.given(path)
    policy.check_directories(policy.load(path)["driver"], path)
    if sections is None:
        show.say(f"{path} does not exist; all settings have their defaults")
    else:
        show.say(f"{path} is right")


@config.command()
def path() -> None:
    """Show where config.toml is, or would be."""
    show.say(system.config_path())


def _source(sections: dict[str, Any], section: str, key: str, path: str) -> str:
    entries = sections.get(section, {})
    profile = sections.get("requests", {}).get("profile", "default")
    if key in entries and (section, key) != ("driver", "dev-root"):
        return path
    if (section, key) == ("driver", "dev-root"):
        return path if entries.get(key) else "driver.root"
    return f"profile {profile}" if key in policy.PROFILES[profile].get(section, {}) else "default"
