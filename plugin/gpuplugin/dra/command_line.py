"""The program gpushim-dra-driver: its command line, and its end.

Out of scope: what it does (driver.py on the node, gpuplugin.cluster beside it).
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
from typing import Any

import click

from gpuplugin.dra import nvidia_flags
from gpuplugin.settings import flags as options
from gpuplugin.settings.sources import Sources
from gpushim import __version__
from gpushim.cli.program import as_process
from gpushim.config import policy
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import logs, system
from gpushim.ground.errors import CONFIG, GpushimError, quote

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
    help="Socket between the halves, which the one on the node makes; all that explains or checks does without.",
)
@click.option(
    "--cluster-user",
    "user",
    metavar="USER",
    default="0",
    help="User, beside root, who may connect to the socket: the one that --cluster runs as. A name or number.",
)
@click.option(
    "--cluster-unit",
    "unit",
    metavar="UNIT",
    default="",
    help="Systemd unit in which whoever connects has to be, besides; it needs the host's PID namespace.",
)
@click.option(
    "--node-name",
    "node",
    metavar="NAME",
    envvar="NODE_NAME",
    default="",
    help="The node's name; else $NODE_NAME, or this host's name.",
)
@click.option(
    "--explain-claim", "claim", metavar="NAMESPACE/NAME", help="Say what a claim has on this node, and exit."
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
@click.option("--check", is_flag=True, help="Say what would be offered to claims and why, and exit.")
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def command(
    cluster: bool,
    socket: str,
    user: str,
    unit: str,
    node: str,
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
    given, notes = nvidia_flags.ours(options.flag_values(flags), os.environ)
    given.update({"metrics": (metrics,), "metrics-token-file": (token,)})  # never the device plugin's address
    if form != "table" and not claim:
        raise click.UsageError("--format is for --explain-claim")
    if check:
        from gpuplugin.dra import dry_run

        found = Sources(given, os.environ).read()
        found.notes[:0] = notes
        dry_run.tell(found, _rival)
        return
    if claim:
        from gpuplugin.dra import explain_claim, node_state

        found = Sources(given, os.environ).read()
        found.notes += node_state.unseen(given)
        explain_claim.tell(claim, found, form)
        return
    if not socket:
        raise click.UsageError("Missing option '--socket'.")
    node = node or os.uname().nodename.strip().lower()  # as kubelet does
    if cluster:
        from gpuplugin.cluster import dra_in_cluster as beside

        beside.run({**os.environ, "NODE_NAME": node}, socket, profile_file="".join(given.get("profile-file", ())))
        return
    sources = Sources(given, os.environ)
    settings = sources.read()
    for note in (*notes, *settings.notes):
        logs.logger.warning("%s", note)
    half, place = _half()
    asyncio.run(half(settings, sources, node, place(socket, _number(user), unit)).run())


command.params += options.options((*nvidia_flags.OURS, *nvidia_flags.NVIDIA))


def _number(user: str) -> int:
    """Return a user's number.

    Raises:
        GpushimError: there is none of that name.
    """
    if user.isascii() and user.isdecimal() and int(user) < 2**32 - 1:
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise GpushimError(f'--cluster-user is "{quote(user)}", and this host has no such user', CONFIG) from None


def _rival(kubelet_dir: str) -> str | None:
    """Say where another giver's driver of this name listens, as `node_state.rival`; without grpcio, as that does."""
    try:
        from gpuplugin.kubelet import plugins
    except ImportError:
        from gpuplugin.dra import node_state

        return node_state.rival()
    return asyncio.run(plugins.find_rival(plugins.Plugins(), kubelet_dir, OWN_DRIVER))


def _half() -> Any:
    """Import what needs grpcio; --help and --cluster do without.

    Raises:
        GpushimError: there is no grpcio.
    """
    try:
        from gpuplugin.dra.driver import NodeHalf
        from gpuplugin.dra.link import Place
    except ImportError as error:
        raise options.no_grpcio(error) from None
    return NodeHalf, Place


def main() -> None:
    """Run as a process."""
    as_process(command, options.spell_flags(sys.argv[1:], (*nvidia_flags.OURS, *nvidia_flags.NVIDIA)))
