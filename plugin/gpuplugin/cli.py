"""The program gpushim-device-plugin: its command line, and its end.

Out of scope: what it does (daemon.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuplugin import halves
from gpuplugin.settings import flags as options
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import as_process
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.nvidia.migrate import plugin_settings
from gpushim.nvidia.migrate.device_plugin_keys import SETTINGS

if TYPE_CHECKING:
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

PROGRAM = "gpushim-device-plugin"


def run(
    check: bool,
    explain: tuple[str, ...],
    labels: bool,
    form: str,
    mps: str | None,
    serves: str | None,
    cluster: bool,
    node_feature: bool,
    once: bool,
    **flags: Any,
) -> None:
    """Register this node's GPUs with kubelet, and allocate them to containers.

    Settings are read from [device-plugin] of /etc/gpushim/config.toml, and as NVIDIA's plugin reads them: flags,
    environment variables of the same names (MIG_STRATEGY), and the file that config-file names.
    """
    socket_options = halves.SocketOptions(*(flags.pop(name) for name in halves.SocketOptions._fields))
    flag_values = options.flag_values(flags)
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    if cluster:
        _run_cluster_half(flag_values, socket_options, node_feature, once)
        return
    sources = Sources(flag_values, os.environ)
    if mps is not None:
        from gpuplugin.mps import supervisor

        supervisor.supervise(mps, sources.read)
        return
    settings = sources.read()
    if serves is not None:
        sys.exit(serves not in settings.values["fronts"])
    if explain or labels or check:
        _print(settings, explain, labels, form)
        return
    for note in settings.notes:
        logs.logger.warning("%s", note)
    halves.serve(settings, sources, settings.values["fronts"], socket_options)


def _print(settings: Settings, explain: tuple[str, ...], labels: bool, form: str) -> None:
    """Print what a container would get, or the node's labels, or what would be registered."""
    if explain:
        from gpuplugin import preview  # imports much that the daemon does not need

        preview.print_report(explain, settings, form)
    elif labels:
        from gpuplugin.cluster import labels_file

        labels_file.print_labels(settings, form, _list_allocators)
    else:
        from gpuplugin import check

        check.print_check(settings, _list_allocators)


def _run_cluster_half(
    flags: dict[str, tuple[str, ...]], socket_options: halves.SocketOptions, node_feature: bool, once: bool
) -> None:
    """Run the half with the token, which ignores files of settings."""
    from gpuplugin.cluster import in_cluster

    settings = {
        setting.key: plugin_settings.read_flag(setting, flags) or plugin_settings.read_variable(setting, os.environ)
        for setting in SETTINGS
        if setting.key in in_cluster.FILES
    }
    profile, labels, layout = (value.value if value else "" for value in map(settings.get, in_cluster.FILES))
    name = socket_options.node_name if socket_options.socket else socket_options.node
    environment = {**os.environ, "NODE_NAME": name}
    in_cluster.run(environment, profile, labels if node_feature else "", once, socket_options.socket, layout)


def _list_allocators(settings: Settings, snapshot: Snapshot) -> list[str]:
    """Return a sentence for each other allocator of this node's GPUs; none without grpcio, which this needs."""
    try:
        from gpuplugin.allocation import allocators
    except ImportError:
        return []
    folder = str(settings.values["kubelet-dir"])
    return [f"{text}: {allocators.THEN[settings.values['other-givers']]}"
            for text in asyncio.run(allocators.beside(folder, snapshot))]  # fmt: skip


def build_command() -> click.Command:
    """Return the command, for `main` and for its man page."""
    parameters = [
        *options.options(),
        *halves.flags(),
        click.Option(["--check"], is_flag=True, help="Show what would be registered and why, and exit."),
        click.Option(
            ["--explain"],
            multiple=True,
            metavar="RESOURCE=NUMBER|IDS",
            help="Show what a container that requests this would get, and exit; may be repeated.",
        ),
        click.Option(
            ["--cluster"],
            is_flag=True,
            help="Run the half that asks the API server: it follows the node's label, posts labels, serves claims.",
        ),
        click.Option(
            ["--once"], is_flag=True, help="With --cluster: write the profile that the label names, and exit."
        ),
        click.Option(["--node-feature"], is_flag=True, help="With --cluster: post labels as a NodeFeature object."),
        click.Option(["--labels"], is_flag=True, help="Print the node's labels, and exit."),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["table", "json"]),
            default="table",
            help="Output of --explain and --labels.",
        ),
        click.Option(
            ["--serves"],
            type=click.Choice([halves.PLUGIN, halves.CLAIMS]),
            help="Exit with 0 if the setting fronts has this, else with 1; a unit of systemd's is started by it.",
        ),
        click.Option(
            ["--mps"],
            metavar="GROUP",
            help="Run the MPS daemon of a group of GPUs, and nothing else; gpushim-mps@GROUP.service does that.",
        ),
    ]
    command = click.Command(PROGRAM, {"help_option_names": ["-h", "--help"]}, run, parameters, help=run.__doc__)
    return click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")(command)


def main() -> None:
    as_process(build_command(), options.spell_flags(sys.argv[1:]))
