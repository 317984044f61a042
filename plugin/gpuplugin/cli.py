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
CLUSTER = ("cluster", "node_feature", "once")  # flags that are no settings


def run(check: bool, explain: tuple[str, ...], labels: bool, form: str, mps: str | None, **flags: Any) -> None:
    """Tell kubelet which GPUs this node has, and what a container gets of them.

    Settings are read from [device-plugin] of /etc/gpushim/config.toml, and as NVIDIA's plugin reads them: flags,
    environment variables of the same names (MIG_STRATEGY), and the file that config-file names.
    """
    cluster = {name: flags.pop(name) for name in CLUSTER}
    meeting = halves.Meeting(*(flags.pop(name) for name in halves.Meeting._fields))
    given = options.flag_values(flags)
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    if cluster["cluster"]:
        _beside(given, meeting, **cluster)
        return
    sources = Sources(given, os.environ)
    if mps is not None:
        from gpuplugin.mps import supervisor

        supervisor.supervise(mps, sources.read)
        return
    found = sources.read()
    if explain:
        from gpuplugin import preview as explaining  # with much of gpushim, which the daemon does without

        explaining.tell(explain, found, form)
        return
    if labels:
        from gpuplugin.cluster import labels_file

        labels_file.print_labels(found, form, _beside_us)
        return
    if check:
        from gpuplugin import check as checking

        checking.tell(found, _beside_us)
        return
    for note in found.notes:
        logs.logger.warning("%s", note)
    halves.serve(found, sources, found.values["fronts"], meeting)


def _beside(
    flags: dict[str, tuple[str, ...]], meeting: halves.Meeting, cluster: bool, node_feature: bool, once: bool
) -> None:
    """Be the half with the token; what files of settings say is not its business."""
    from gpuplugin.cluster import in_cluster

    found = {
        setting.key: plugin_settings.by_flag(setting, flags) or plugin_settings.by_variable(setting, os.environ)
        for setting in SETTINGS
        if setting.key in in_cluster.FILES
    }
    profile, labels = (given.value if given else "" for given in map(found.get, in_cluster.FILES))
    environment = {**os.environ, "NODE_NAME": meeting.node} if meeting.node else os.environ
    in_cluster.run(environment, profile, labels if node_feature else "", once, meeting.socket)


def _beside_us(settings: Settings, snapshot: Snapshot) -> list[str]:
    """Say who else gives out this node's GPUs; nothing without grpcio, with which alone they can be asked."""
    try:
        from gpuplugin.allocation import allocators
    except ImportError:
        return []
    folder = str(settings.values["kubelet-dir"])
    return [f"{text}: {allocators.THEN[settings.values['other-givers']]}"
            for text in asyncio.run(allocators.beside(folder, snapshot))]  # fmt: skip


def command() -> click.Command:
    """Return the command, for `main` and for its man page."""
    parameters = [
        *options.options(),
        *halves.flags(),
        click.Option(["--check"], is_flag=True, help="Say what would be registered and why, and exit."),
        click.Option(
            ["--explain"],
            multiple=True,
            metavar="RESOURCE=NUMBER|IDS",
            help="Say what a container gets that asks for this, and exit; may be repeated.",
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
            help="How --explain and --labels print it.",
        ),
        click.Option(
            ["--mps"],
            metavar="GROUP",
            help="Run the MPS daemon of a group of GPUs, and nothing else; gpushim-mps@GROUP.service does it.",
        ),
    ]
    found = click.Command(PROGRAM, {"help_option_names": ["-h", "--help"]}, run, parameters, help=run.__doc__)
    return click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")(found)


def main() -> None:
    as_process(command(), options.spell_flags(sys.argv[1:]))
