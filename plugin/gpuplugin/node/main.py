"""The program gpushim-node: its command line.

Out of scope: what its commands do (install.py, uninstall.py, gpuplugin.cluster.installed_label), and what `keep`
becomes (gpushim.refresh.keep).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gpuplugin.node import engine, host, install, uninstall, waiting
from gpuplugin.node.installed import Mark
from gpushim import __version__
from gpushim.cli.program import Program
from gpushim.cli.show import say
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import NOT_FOUND, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "gpushim-node"
PAYLOAD = "/usr/share/gpushim/node"


def _absolute(_ctx: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.startswith("/"):
        raise click.BadParameter("it is not an absolute path")
    return os.path.normpath(value)


def _absolute_or_none(ctx: click.Context, option: click.Parameter, value: str) -> str:
    return value and _absolute(ctx, option, value)


HOST = click.option(
    "--host",
    "place",
    metavar="DIR",
    default="/host",
    show_default=True,
    callback=_absolute,
    help="Where the node's root directory is mounted.",
)
# It travels with the payload, of which the node gets the rest.
FOLDER = click.option("--payload", "folder", metavar="DIR", default=PAYLOAD, hidden=True, callback=_absolute)
RESTART = click.option(
    "--restart", is_flag=True, help="Restart the engine if its settings have changed, or it does not know them yet."
)
INSTALLED = click.option(
    "--installed-file",
    "installed",
    metavar="FILE",
    default="",
    callback=_absolute_or_none,
    help="File of this container that exists once gpushim is installed.",
)

_OPTIONS = (
    HOST,
    FOLDER,
    click.option(
        "--engine",
        "name",
        type=click.Choice(["auto", "containerd", "crio", "none"]),
        default="auto",
        show_default=True,
        help="The engine to configure; auto is the one of both that runs.",
    ),
    click.option("--config", metavar="FILE", help="Another file than the usual; of CRI-O gpushim's own."),
    click.option("--runtime-name", default="nvidia", show_default=True, help="What the runtime is called."),
    click.option("--set-as-default", is_flag=True, help="Containers get the runtime without asking for it."),
    click.option("--cdi", is_flag=True, help="Let the engine inject CDI devices."),
    click.option(
        "--driver-root",
        "root",
        metavar="DIR",
        default="",
        callback=_absolute_or_none,
        help="The driver's directory, for a config.toml that nobody has changed.",
    ),
    click.option("--force", is_flag=True, help="Replace a runtime of this name that is not gpushim's."),
    RESTART,
    INSTALLED,
)


@click.group(PROGRAM, cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message=f"{PROGRAM} %(version)s")
def main() -> None:
    """Put gpushim onto the node that this container runs on, take it away, and keep its list of GPUs true."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what install is told; keep is told the same, for a node that gets its first device later."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _words(options: dict[str, Any]) -> list[str]:
    words = [f"--{key.replace('_', '-')}={options[key]}" for key in ("config", "runtime_name") if options[key]]
    return words + [f"--{key.replace('_', '-')}" for key in ("set_as_default", "cdi", "force") if options[key]]


@main.command("install", short_help="Put gpushim onto the node, and configure its engine.")
@_options
def install_command(
    place: str, folder: str, name: str, restart: bool, installed: str, root: str, **options: Any
) -> None:
    """Put gpushim onto the node: its programs, a list of the GPUs, and the engine's settings.

    What is there already stays as it is, so that a second run changes and restarts nothing; another version, older or
    newer, takes the place of the one that is there, and containers that are being created meanwhile get theirs.
    /etc/gpushim/config.toml is never written over, but for the driver root where nobody has changed it. On a node
    without an NVIDIA device nothing is done.
    """
    host.check(place)
    mark = Mark(installed)
    if waiting.is_due(place):
        install.install(place, folder, name, _words(options), restart, root)
        mark.put()
    else:
        say(f"{PROGRAM}: {waiting.NONE}; nothing is installed")


@main.command("uninstall", short_help="Remove from the node what install put there.")
@HOST
@FOLDER
@click.option(
    "--labels-directory",
    "labels",
    metavar="DIR",
    default=uninstall.LABELS,
    show_default=True,
    callback=_absolute,
    help="Where the plugin's labels file is, for node-feature-discovery.",
)
@RESTART
def uninstall_command(place: str, folder: str, labels: str, restart: bool) -> None:
    """Take away what install has put onto the node: first the engine's settings, then the files.

    Files that somebody has changed stay. For containers that run, and whose engine calls gpushim-runtime for them, a
    script stays in its place until they have ended.
    """
    uninstall.uninstall(place, folder, labels, restart)


@main.command("keep", short_help="Keep the node's list of GPUs up to date until a signal arrives.")
@_options
def keep_command(
    place: str, folder: str, name: str, restart: bool, installed: str, root: str, **options: Any
) -> None:
    """Become the node's own `gpushim refresh --keep`, until a signal comes; that takes nothing off the node.

    Where install had nothing to do, wait for an NVIDIA device, and install when one comes.
    """
    host.check(place)
    mark = Mark(installed)
    if waiting.is_settled(place):
        host.enter(place)
    else:
        waiting.wait(place)
        install.install(place, folder, name, _words(options), restart, root)
        waiting.settled()
    mark.put()
    try:
        os.execv(engine.PROGRAM, [engine.PROGRAM, "refresh", "--keep"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise GpushimError(
            f"{engine.PROGRAM} of the node cannot be executed: {error.strerror}; run gpushim-node install before",
            NOT_FOUND,
        ) from None


@main.command("label", short_help="Label the node in Kubernetes once gpushim is installed on it.")
@click.option("--name", "label", required=True, help="Name of the label, whose value is true.")
@INSTALLED
@click.option(
    "--posted-file",
    "posted",
    metavar="FILE",
    default="",
    callback=_absolute_or_none,
    help="File to make once the API server has the label.",
)
@click.option("--remove", is_flag=True, help="Remove the label, and end.")
def label_command(label: str, installed: str, posted: str, remove: bool) -> None:
    """Label this pod's node while the file exists that shows that gpushim is installed, until a signal comes.

    It needs no privileges, only NODE_NAME and the token of a service account that may patch nodes.
    """
    from gpuplugin.cluster import in_cluster, parts
    from gpuplugin.cluster.cluster import Api, named
    from gpuplugin.cluster.installed_label import InstalledLabel

    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    node = named(os.environ.get("NODE_NAME", ""), "NODE_NAME")
    one = InstalledLabel(Api(os.environ), node, label, "" if remove else installed, posted)
    parts.run([in_cluster.watching(one.look)], once=remove)
