"""The two halves of gpushim on a node, as both programs' command lines have them: where they meet, and the one here.

The one on the node is root and has no token; the other asks the API server (gpuplugin.cluster).
"""

from __future__ import annotations

import asyncio
import os
import pwd
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpuplugin.settings import flags as options
from gpushim.ground.errors import CONFIG, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplugin.settings.settings import Settings
    from gpuplugin.settings.sources import Sources

PLUGIN, CLAIMS = "device-plugin", "dra"  # values of fronts


class SocketOptions(NamedTuple):
    """Options of the socket between the halves, and the name of the node.

    Attributes:
        socket: path, or "".
        user: who may connect, beside root.
        unit: of systemd, in which whoever connects has to be; "" for any.
        node: this node's name, or "".
    """

    socket: str
    user: str
    unit: str
    node: str

    @property
    def node_name(self) -> str:
        """Return the node's name; by default this host's, as with kubelet."""
        return self.node or os.uname().nodename.strip().lower()

    @property
    def path(self) -> str:
        """Return the socket's path.

        Raises:
            click.UsageError: none was given.
        """
        if not self.socket:
            raise click.UsageError("Missing option '--socket', which claims (fronts) need.")
        return self.socket


def flags() -> list[click.Parameter]:
    """Return the options, by whose values SocketOptions are made."""
    return [
        click.Option(
            ["--socket"],
            metavar="PATH",
            default="",
            help="Socket between the halves, for claims, which the one on the node makes.",
        ),
        click.Option(
            ["--cluster-user", "user"],
            metavar="USER",
            default="0",
            help="User, beside root, who may connect to it: the one that --cluster runs as. A name or number.",
        ),
        click.Option(
            ["--cluster-unit", "unit"],
            metavar="UNIT",
            default="",
            help="Systemd unit in which whoever connects has to be, besides; it needs the host's PID namespace.",
        ),
        click.Option(
            ["--node-name", "node"],
            metavar="NAME",
            envvar="NODE_NAME",
            default="",
            help="The node's name; else $NODE_NAME, or this host's name.",
        ),
    ]


def serve(settings: Settings, sources: Sources, fronts: Collection[str], socket_options: SocketOptions) -> None:
    """Be the half on the node, until a signal ends it.

    Args:
        fronts: by which GPUs are given out, PLUGIN or CLAIMS or both.
        socket_options: where the other half comes, for CLAIMS.

    Raises:
        click.UsageError: there is no socket for CLAIMS.
        GpushimError: there is no grpcio, or as for `daemon.Agent.run`.
    """
    makes: list[Any] = []
    try:  # --help and --cluster do without
        from gpuplugin import daemon

        if PLUGIN in fronts:
            from gpuplugin.allocation.plugin_front import PluginFront

            makes.append(PluginFront)
        if CLAIMS in fronts:
            from gpuplugin.dra.claims_front import ClaimsFront
            from gpuplugin.dra.link import LinkSocket

            socket = LinkSocket(socket_options.path, _number(socket_options.user), socket_options.unit)
            makes.append(partial(ClaimsFront, socket_options.node_name, socket))
    except ImportError as error:
        raise options.no_grpcio(error) from None
    asyncio.run(daemon.Agent(settings, sources, makes).run())


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
