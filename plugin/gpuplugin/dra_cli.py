"""The program gpushim-dra-driver: its command line, and its end.

Out of scope: what it does (daemon.py on the node, gpuplugin.cluster beside it).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuplugin import halves
from gpuplugin.dra import nvidia_flags
from gpuplugin.settings import flags as options
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import as_process
from gpushim.config import policy
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import logs, system

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = "gpushim-dra-driver"
NO_SERVER = (
    "fronts under [device-plugin] of config.toml has dra, and kubeconfig there names no file, without which no API "
    "server is known but to a pod"
)


@click.command(PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--cluster",
    is_flag=True,
    help="Run the half that asks the API server: it writes ResourceSlices, and reads claims for the other half.",
)
@click.option(
    "--explain-claim", "claim", metavar="NAMESPACE/NAME", help="Show what a claim has on this node, and exit."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    help="How --explain-claim prints it.",
)
@click.option(
    "--metrics",
    metavar="ADDRESS",
    default="",
    help="Where /metrics, /healthz and /readyz are served, as the device plugin's setting says it; else nowhere.",
)
@click.option(
    "--metrics-token-file", "token", metavar="FILE", default="", help="File with the token that /metrics requires."
)
@click.option("--check", is_flag=True, help="Show what would be offered to claims and why, and exit.")
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def command(
    cluster: bool,
    claim: str | None,
    form: str,
    metrics: str,
    token: str,
    check: bool,
    **flags: Any,
) -> None:
    """Give out this node's GPUs by Kubernetes claims (dynamic resource allocation), as the driver gpu.nvidia.com.

    Its settings are the device plugin's: [device-plugin] in /etc/gpushim/config.toml, and the file config-file there.
    Flags and variables of NVIDIA's driver are read where they mean the same.
    """
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    socket_options = halves.SocketOptions(*(flags.pop(name) for name in halves.SocketOptions._fields))
    values, notes = nvidia_flags.ours(options.flag_values(flags), os.environ)
    values.update({"metrics": (metrics,), "metrics-token-file": (token,)})  # never the device plugin's address
    if form != "table" and not claim:
        raise click.UsageError("--format is for --explain-claim")
    if check:
        _check(values, notes)
    elif claim:
        _explain_claim(values, claim, form)
    elif cluster:
        _ask_cluster(values, socket_options)
    else:
        _serve_claims(values, notes, socket_options)


command.params += [*halves.flags(), *options.options((*nvidia_flags.OURS, *nvidia_flags.NVIDIA))]


def _check(flag_values: Mapping[str, Sequence[str]], notes: Sequence[str]) -> None:
    """Print what would be offered, and what a package's driver lacks."""
    from gpuplugin.dra import dry_run
    from gpuplugin.snapshot import node_snapshot

    settings = Sources(flag_values, os.environ).read()
    settings.notes[:0] = notes
    is_pod, values = bool(os.environ.get(node_snapshot.POD)), settings.values
    if halves.CLAIMS in values["fronts"] and not values["kubeconfig"] and not is_pod:
        settings.notes.append(NO_SERVER)
    dry_run.tell(settings, _rival)


def _explain_claim(flag_values: Mapping[str, Sequence[str]], claim: str, form: str) -> None:
    from gpuplugin.dra import explain_claim, node_state

    settings = Sources(flag_values, os.environ).read()
    settings.notes += node_state.unseen(flag_values)
    explain_claim.tell(claim, settings, form)


def _ask_cluster(flag_values: Mapping[str, Sequence[str]], socket_options: halves.SocketOptions) -> None:
    from gpuplugin.cluster import in_cluster

    environment = {**os.environ, "NODE_NAME": socket_options.node_name}
    profile, layout = ("".join(flag_values.get(flag, ())) for flag in ("profile-file", "mig-layout-file"))
    in_cluster.run(environment, profile, "", False, socket_options.path, layout)


def _serve_claims(
    flag_values: Mapping[str, Sequence[str]], notes: Sequence[str], socket_options: halves.SocketOptions
) -> None:
    sources = Sources(flag_values, os.environ)
    settings = sources.read()
    for note in (*notes, *settings.notes):
        logs.logger.warning("%s", note)
    halves.serve(settings, sources, (halves.CLAIMS,), socket_options)


def _rival(kubelet_dir: str) -> str | None:
    """Return where another giver's driver of this name listens, as `node_state.rival`; without grpcio, by that."""
    try:
        from gpuplugin.kubelet import plugins
    except ImportError:
        from gpuplugin.dra import node_state

        return node_state.rival()
    return asyncio.run(plugins.find_rival(plugins.Plugins(), kubelet_dir, OWN_DRIVER))


def main() -> None:
    """Run as a process."""
    as_process(command, options.spell_flags(sys.argv[1:], (*nvidia_flags.OURS, *nvidia_flags.NVIDIA)))
