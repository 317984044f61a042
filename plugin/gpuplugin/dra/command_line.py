"""The program gpushim-dra-driver: its command line, and its end.

Out of scope: what it does (driver.py on the node, gpuplugin.cluster beside it).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click

from gpuplugin.dra.offered import EFFECTS, NO_SCHEDULE
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import as_process
from gpushim.config import policy
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import logs, system
from gpushim.ground.errors import GpushimError

PROGRAM = "gpushim-dra-driver"


@click.command(PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--cluster",
    is_flag=True,
    help="Run the half that asks the API server: it writes ResourceSlices, and reads claims for the other half.",
)
@click.option(
    "--socket",
    metavar="PATH",
    default="",
    help="Socket between the halves, which the one on the node makes; needed without --check.",
)
@click.option(
    "--cluster-user",
    "user",
    metavar="NUMBER",
    type=click.IntRange(0, 2**32 - 2),
    default=0,
    help="Number of the user, beside root, who may connect to the socket: the one that --cluster runs as.",
)
@click.option(
    "--node-name", "node", metavar="NAME", envvar="NODE_NAME", default="", help="The node's name; else $NODE_NAME."
)
@click.option(
    "--taint-effect",
    "effect",
    type=click.Choice(EFFECTS),
    default=NO_SCHEDULE,
    show_default=True,
    help="Effect of an unhealthy GPU's taint: it evicts pods, keeps new ones away, or only tells.",
)
@click.option(
    "--kubelet-dir", metavar="DIR", help="kubelet's directory; else the one in the device plugin's settings."
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
@click.option("--check", is_flag=True, help="Say what would be offered to claims and why, and exit.")
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def command(
    cluster: bool,
    socket: str,
    user: int,
    node: str,
    effect: str,
    kubelet_dir: str | None,
    metrics: str,
    token: str,
    check: bool,
) -> None:
    """Give out this node's GPUs by Kubernetes claims (dynamic resource allocation), as the driver gpu.nvidia.com.

    Its settings are the device plugin's: [device-plugin] in /etc/gpushim/config.toml.
    """
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    flags = {"metrics": (metrics,), "metrics-token-file": (token,)}  # never the device plugin's address
    flags.update({"kubelet-dir": (kubelet_dir,)} if kubelet_dir else {})
    if check:
        from gpuplugin.dra import dry_run

        dry_run.tell(Sources(flags, {}).read(), _rival)
        return
    if not socket:
        raise click.MissingParameter(param_hint="'--socket'", param_type="option")
    if not node:
        raise GpushimError("the node's name is not known; set NODE_NAME, or --node-name")
    if cluster:
        from gpuplugin.cluster import dra_in_cluster as beside

        beside.run({**os.environ, "NODE_NAME": node}, socket)
        return
    settings = Sources(flags, {}).read()
    asyncio.run(_half()(settings, node, socket, user, effect).run())


def _rival(kubelet_dir: str) -> str:
    """Say where another giver's driver of this name listens; "" without grpcio, with which alone one can be asked."""
    try:
        from gpuplugin.kubelet import plugins
    except ImportError:
        return ""
    return asyncio.run(plugins.rival(plugins.Plugins(), kubelet_dir, OWN_DRIVER))


def _half() -> Any:
    """Import what needs grpcio; --help and --cluster do without.

    Raises:
        GpushimError: there is no grpcio.
    """
    try:
        from gpuplugin.dra.driver import NodeHalf
    except ImportError as error:
        raise GpushimError(
            f"Python's grpcio cannot be used ({error}); install python3-grpcio, or with pip gpushim[device-plugin]"
        ) from None
    return NodeHalf


def main() -> None:
    """Run as a process."""
    as_process(command, sys.argv[1:])
