"""The program gpushim-dra-driver: its command line, and its end.

Out of scope: what it does (driver.py on the node, gpuplugin.cluster beside it).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import click

from gpuplugin.dra import taints
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import guard
from gpushim.cli.show import say
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import GpushimError

PROGRAM = "gpushim-dra-driver"
SOCKET = "/run/gpushim-dra/cluster.sock"
USER = 65532  # as whom the chart runs the container beside it


@click.command(PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", is_flag=True, help="Do what a pod does beside the driver: write slices, fetch claims.")
@click.option(
    "--socket",
    metavar="PATH",
    default=SOCKET,
    show_default=True,
    help="By which both halves talk; made by the driver.",
)
@click.option(
    "--cluster-user",
    "user",
    metavar="NUMBER",
    type=click.IntRange(0, 2**32 - 2),
    default=USER,
    show_default=True,
    help="User of the process that may ask for the other half, beside root.",
)
@click.option(
    "--node-name", "node", metavar="NAME", envvar="NODE_NAME", default="", help="The node's name; else $NODE_NAME."
)
@click.option(
    "--taint-effect",
    "effect",
    type=click.Choice(taints.EFFECTS),
    default=taints.NO_SCHEDULE,
    show_default=True,
    help="What becomes of pods on a GPU that is unhealthy: none is added, all are evicted, nothing.",
)
@click.option("--kubelet-dir", metavar="DIR", help="kubelet's directory; else that of the device plugin's settings.")
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def command(cluster: bool, socket: str, user: int, node: str, effect: str, kubelet_dir: str | None) -> None:
    """Give out this node's GPUs by claims of Kubernetes (dynamic resource allocation), as gpu.nvidia.com.

    Settings are those of the device plugin, in [device-plugin] of /etc/gpushim/config.toml.
    """
    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    if not node:
        raise GpushimError("the node's name is not known; set NODE_NAME, or --node-name")
    if cluster:
        from gpuplugin.cluster import dra_in_cluster as beside

        beside.run({**os.environ, "NODE_NAME": node}, socket)
        return
    flags = {"kubelet-dir": (kubelet_dir,)} if kubelet_dir else {}
    settings = Sources(flags, {}).read()
    asyncio.run(_half()(settings, _options()(node, socket, user, effect)).run())


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


def _options() -> Any:
    from gpuplugin.dra.driver import Options

    return Options


def main() -> None:
    """Run as a process: exit 0, or say one sentence on stderr and exit with its code."""
    if os.getpid() == 1:  # which the kernel spares signals that it does not handle; the daemon takes over
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    guard()
    try:
        command.main(sys.argv[1:], PROGRAM)
    except GpushimError as error:
        say(f"{PROGRAM}: {error}", error=True)
        sys.exit(error.exit_code)
