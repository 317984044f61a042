"""The program gpushim-dra-driver: its command line, and its end.

Out of scope: what it does (driver.py on the node, gpuplugin.cluster beside it).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuplugin.dra.offered import EFFECTS, NO_SCHEDULE
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import as_process
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from gpuplugin.settings.settings import Settings

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
    help="Socket between the halves, which the one on the node makes.",
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
    "--explain", "file", metavar="FILE", help="Say what this node can serve of the claims in FILE, and exit."
)
@click.option(
    "--explain-claim", "claim", metavar="NAMESPACE/NAME", help="Say what a claim has on this node, and exit."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    help="How --explain and --explain-claim print it.",
)
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def command(
    cluster: bool,
    socket: str,
    user: int,
    node: str,
    effect: str,
    kubelet_dir: str | None,
    file: str | None,
    claim: str | None,
    form: str,
) -> None:
    """Give out this node's GPUs by Kubernetes claims (dynamic resource allocation), as the driver gpu.nvidia.com.

    Its settings are the device plugin's: [device-plugin] in /etc/gpushim/config.toml.
    """
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    flags = {"kubelet-dir": (kubelet_dir,)} if kubelet_dir else {}
    if file or claim:
        _explain(file, claim, Sources(flags, {}).read(), effect, form)
        return
    if not socket:
        raise click.UsageError("Missing option '--socket'.")
    if not node:
        raise GpushimError("the node's name is not known; set NODE_NAME, or --node-name")
    if cluster:
        from gpuplugin.cluster import dra_in_cluster as beside

        beside.run({**os.environ, "NODE_NAME": node}, socket)
        return
    settings = Sources(flags, {}).read()
    asyncio.run(_half()(settings, node, socket, user, effect).run())


def _explain(file: str | None, claim: str | None, settings: Settings, effect: str, form: str) -> None:
    """Say what is asked; with much of gpushim, which the halves do without."""
    if claim:
        from gpuplugin.dra import explain_held

        explain_held.tell(claim, settings, effect, form)
    if file:
        from gpuplugin.dra import explain_file

        explain_file.tell(file, settings, effect, form)


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
