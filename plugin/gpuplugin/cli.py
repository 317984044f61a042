"""The program gpushim-device-plugin: its command line, and its end.

Out of scope: what it does (daemon.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click

from gpuplugin import check as checking
from gpuplugin import settings
from gpuplugin.settings import SETTINGS
from gpushim import __version__, logs, policy
from gpushim.cli.program import guard
from gpushim.cli.show import say
from gpushim.errors import GpushimError

PROGRAM = "gpushim-device-plugin"


def spelled(words: list[str]) -> list[str]:
    """Write flags as click reads them: with two dashes, and a switch with its value.

    Args:
        words: as NVIDIA's plugin, a Go program, takes them too: -flag, --flag, --switch, --switch=false.
    """
    switches = {flag for setting in SETTINGS if setting.kind == "bool" for flag in setting.flags}
    found = []
    for word in words:
        if word.startswith("-") and len(word.lstrip("-")) > 1:
            word = "--" + word.lstrip("-")
        found.append(word + "=true" if word[2:] in switches else word)
    return found


def _options() -> list[click.Parameter]:
    rows: list[click.Parameter] = []
    for setting in SETTINGS:
        for flag in setting.flags:
            shown = (setting.key and flag == setting.flags[0]) or flag == "kubelet-socket"
            kind = {"bool": "true|false", "word": "TEXT", "words": "TEXT,...", "numbers": "NUMBER,..."}[setting.kind]
            metavar = (
                "|".join(setting.choices) + (",..." if setting.kind == "words" else "") if setting.choices else kind
            )
            default = setting.default if setting.kind in ("bool", "word") else ",".join(map(str, setting.default))
            text = f"{setting.help} [{str(default).lower() if setting.kind == 'bool' else default}]"
            rows.append(click.Option([f"--{flag}"], multiple=True, metavar=metavar, help=text, hidden=not shown))
    return rows


def run(config_file: str | None, check: bool, **flags: Any) -> None:
    """Tell kubelet which GPUs this node has, and what a container gets of them.

    Settings are read from [device-plugin] of /etc/gpushim/config.toml, and as NVIDIA's plugin reads them: flags,
    environment variables of the same names (MIG_STRATEGY), --config-file.
    """
    given = {name.replace("_", "-"): value for name, value in flags.items() if value}
    config = policy.load(policy.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    path = config_file or os.environ.get("CONFIG_FILE", "")
    found = settings.resolve(given, os.environ, {}, path)
    if check:
        say("\n".join(checking.check(found)))
        return
    for note in found.notes:
        logs.logger.warning("%s", note)
    asyncio.run(_daemon().Plugin(found).run())


def _daemon() -> Any:
    """Import what needs grpcio; --help, --check, --version and man pages do without.

    Raises:
        GpushimError: there is no grpcio.
    """
    try:
        from gpuplugin import daemon
    except ImportError as error:
        raise GpushimError(
            f"Python's grpcio cannot be used ({error}); install python3-grpcio, or with pip gpushim[device-plugin]"
        ) from None
    return daemon


def command() -> click.Command:
    """Return the command, for `main` and for its man page."""
    options = [
        *_options(),
        click.Option(["--config-file"], metavar="FILE", help="settings as NVIDIA's plugin has them, YAML or JSON"),
        click.Option(["--check"], is_flag=True, help="say what would be registered and why, and exit"),
    ]
    found = click.Command(PROGRAM, {"help_option_names": ["-h", "--help"]}, run, options, help=run.__doc__)
    return click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")(found)


def main() -> None:
    """Run as a process: exit 0, or say one sentence on stderr and exit with its code."""
    guard()
    try:
        command().main(spelled(sys.argv[1:]), PROGRAM)
    except GpushimError as error:
        say(f"{PROGRAM}: {error}", error=True)
        sys.exit(error.exit_code)
