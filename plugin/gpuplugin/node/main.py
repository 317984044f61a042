"""The program gpushim-node: its command line.

Out of scope: what its commands do (install.py, uninstall.py, gpuplugin.cluster.installed_label), and what `keep`
becomes (gpushim.refresh.keep).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gpuplugin.node import engine, host, install, uninstall, waiting
from gpuplugin.node.installed_file import InstalledFile
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
    "node_root",
    metavar="DIR",
    default="/host",
    show_default=True,
    callback=_absolute,
    help="Where the node's root directory is mounted.",
)
# Part of the image, whose payload goes to the node.
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
    click.option(
        "--config",
        metavar="FILE",
        help="Settings file other than the default; for CRI-O the file that is gpushim's own.",
    ),
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
    """Install gpushim on the node that this container runs on, uninstall it, and keep its list of GPUs up to date."""


def _add_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add install's options to a command; keep has them, too, for a node that gets its first device later."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _build_words(options: dict[str, Any]) -> list[str]:
    words = [f"--{key.replace('_', '-')}={options[key]}" for key in ("config", "runtime_name") if options[key]]
    return words + [f"--{key.replace('_', '-')}" for key in ("set_as_default", "cdi", "force") if options[key]]


@main.command("install", short_help="Install gpushim on the node, and configure its engine.")
@_add_options
def install_command(
    node_root: str, folder: str, name: str, restart: bool, installed: str, root: str, **options: Any
) -> None:
    """Install gpushim on the node: its programs, a list of the GPUs, and the engine's settings.

    A second run changes and restarts nothing. Another version, older or newer, is replaced, and containers that are
    being created meanwhile still use it. /etc/gpushim/config.toml is never overwritten, except for the driver root if
    nobody has changed the file. On a node without an NVIDIA device nothing is done.
    """
    host.check_root(node_root)
    installed_file = InstalledFile(installed)
    if waiting.is_due(node_root):
        install.install(node_root, folder, name, _build_words(options), restart, root)
        installed_file.create()
    else:
        say(f"{PROGRAM}: {waiting.NONE}; nothing is installed")


@main.command("uninstall", short_help="Remove from the node what install has written.")
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
def uninstall_command(node_root: str, folder: str, labels: str, restart: bool) -> None:
    """Remove the engine's settings from the node, then the files that install has written.

    Files that somebody has changed stay. For running containers whose engine calls gpushim-runtime, a script replaces
    it until they have ended.
    """
    uninstall.uninstall(node_root, folder, labels, restart)


@main.command("keep", short_help="Keep the node's list of GPUs up to date until a signal arrives.")
@_add_options
def keep_command(
    node_root: str, folder: str, name: str, restart: bool, installed: str, root: str, **options: Any
) -> None:
    """Run the node's `gpushim refresh --keep` until a signal arrives; nothing is removed from the node then.

    On a node where install found no NVIDIA device, wait for one, and install when it appears.
    """
    host.check_root(node_root)
    installed_file = InstalledFile(installed)
    if waiting.is_complete(node_root):
        host.enter(node_root)
    else:
        waiting.wait_for_device(node_root)
        install.install(node_root, folder, name, _build_words(options), restart, root)
        waiting.mark_complete()
    installed_file.create()
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
    """Label this pod's node while the --installed-file exists, until a signal arrives.

    It needs no privileges, only NODE_NAME and the token of a service account that may patch nodes.
    """
    from gpuplugin.cluster import in_cluster, parts
    from gpuplugin.cluster.cluster import Api, named
    from gpuplugin.cluster.installed_label import InstalledLabel

    config = policy.load(system.config_path())
    logs.start(config["log"]["format"], config["log"]["level"])
    node = named(os.environ.get("NODE_NAME", ""), "NODE_NAME")
    installed_label = InstalledLabel(Api(os.environ), node, label, "" if remove else installed, posted)
    parts.run([in_cluster.watching(installed_label.look)], once=remove)
