"""Settings as options of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate.device_plugin_keys import SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def spell_flags(words: list[str], settings: Iterable[Setting] = SETTINGS) -> list[str]:
    """Return flags as click reads them: with two dashes, and a switch with its value.

    Args:
        words: as NVIDIA's programs, which are Go's, take them too: -flag, --flag, --switch, --switch=false.
        settings: those that there are flags of.
    """
    switches = {flag for setting in settings if setting.rule["type"] == "boolean" for flag in setting.flags}
    spelled_words = []
    for word in words:
        if word.startswith("-") and word.lstrip("-") not in ("", "h", "V"):
            word = "--" + word.lstrip("-")
        spelled_words.append(word + "=true" if word[2:] in switches else word)
    return spelled_words


def options(settings: Iterable[Setting] = SETTINGS) -> list[click.Parameter]:
    """Return an option for each flag; those that do nothing here, and second names, are hidden."""
    return [
        click.Option(
            [f"--{flag}"],
            multiple=True,
            metavar=_metavar(setting.rule),
            help=_help(setting),
            hidden=not setting.key or flag != setting.flags[0],
        )
        for setting in settings
        for flag in setting.flags
    ]


def _metavar(rule: dict[str, Any]) -> str:
    if rule["type"] == "array":
        return f"{_metavar(rule['items'])},..."
    names = {"boolean": "[=true|false]", "integer": "NUMBER", "string": "TEXT"}
    return f"[{'|'.join(rule['enum'])}]" if "enum" in rule else names[rule["type"]]


def _help(setting: Setting) -> str:
    default = setting.rule.get("default", "")
    shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
    value = shown.lower() if isinstance(default, bool) else shown
    return setting.note or f"{setting.rule['description']}  [default: {value or 'none'}]"


def flag_values(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return a command line's values by flag, from those of click's parameters."""
    return {name.replace("_", "-"): value for name, value in values.items() if value}


def no_grpcio(error: ImportError) -> GpushimError:
    """Return the error for a missing grpcio, without which nothing speaks with kubelet."""
    return GpushimError(
        f"Python's grpcio cannot be used ({error}); install python3-grpcio, or with pip gpushim[device-plugin]"
    )
