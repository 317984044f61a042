"""`nvidia-ctk`: the command line of NVIDIA's container toolkit, whose commands run those of gpushim.

Options without a meaning here are accepted with a warning, so that scripts keep working. Out of scope: doing
anything itself; `nvidia-ctk hook`, which container engines call (cdi_hook.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import click

from gpushim import __version__
from gpushim.cli import show
from gpushim.cli.cdi import cdi
from gpushim.cli.configure import configure, file_option
from gpushim.cli.info import info
from gpushim.cli.program import Program
from gpushim.cli.system import create_dev_char_links, create_device_nodes
from gpushim.config import policy
from gpushim.engines.settings import files
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.nvidia.migrate import migrate
from gpushim.nvidia.migrate.migrate_engines import is_nvidia_runtime
from gpushim.nvidia.migrate.migrate_keys import FALSE, KEYS, TRUE

ENGINES = ("docker", "containerd", "crio")


class _Commands(Program, show.Commands):
    """A group whose error for an unknown command lists the commands that gpushim has."""

    failure = 1

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            commands = ", ".join(["hook", *self.list_commands(ctx)])
            raise GpushimError(
                f"this nvidia-ctk is gpushim's and has no command {quote(args[0])}; it has {commands}, and "
                "gpushim --help shows what else there is"
            )
        return super().resolve_command(ctx, args)


def _accept_ignored(flags: Iterable[str] = (), values: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Return a decorator that adds options which a command accepts and ignores, with a warning."""

    def warn(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value:
            show.say(f"warning: {option.opts[0]} is ignored: gpushim decides that itself", error=True)

    def decorate(command: Any) -> Any:
        for name in flags:
            command = click.option(name, is_flag=True, hidden=True, expose_value=False, callback=warn)(command)
        for name in values:
            command = click.option(name, hidden=True, expose_value=False, callback=warn)(command)
        return command

    return decorate


def _run_command(command: click.Command, words: list[str]) -> None:
    with command.make_context(command.name, words, parent=click.get_current_context()) as ctx:
        command.invoke(ctx)


@click.group("nvidia-ctk", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", message="nvidia-ctk of gpushim version %(version)s")
@click.option("--debug", "-d", is_flag=True, hidden=True, expose_value=False)
@click.option("--quiet", "-q", is_flag=True, hidden=True, expose_value=False)
@click.option("--config", hidden=True, expose_value=False)
def main() -> None:
    """Stand in for NVIDIA's nvidia-ctk: the same commands, done by gpushim."""


main.add_command(cdi)
main.add_command(info)


@main.group()
def runtime() -> None:
    """Configure container engines."""


@runtime.command("configure")
@click.option("--runtime", "engine", default="docker", show_default=True, help=" or ".join(ENGINES))
@file_option("--config", help="The engine's settings.")
@click.option("--config-mode", default="", hidden=True)
@click.option("--nvidia-runtime-name", "name", default="nvidia", show_default=True, help="Name of the runtime.")
@file_option("--nvidia-runtime-path", "--runtime-path", "path", help="Path of gpushim-runtime.")
@click.option("--nvidia-set-as-default", "--set-as-default", "default", is_flag=True, help="For all containers.")
@click.option("--cdi.enabled", "--cdi.enable", "--enable-cdi", "cdi_", is_flag=True, help="Let the engine do CDI.")
@click.option("--dry-run", is_flag=True, help="Show the change as a diff, and change nothing.")
@_accept_ignored(values=("--drop-in-config", "--executable-path", "--config-source"))
@_accept_ignored(values=("--nvidia-runtime-hook-path", "--oci-hook-path"))
def runtime_configure(
    engine: str, config: str, config_mode: str, name: str, path: str, default: bool, cdi_: bool, dry_run: bool
) -> None:
    """Make a container engine use gpushim-runtime, as `gpushim configure ENGINE --force`.

    An entry of this name is replaced, as NVIDIA's does; everything else in the file stays.
    """
    if engine not in ENGINES:
        raise GpushimError(
            f"--runtime={quote(engine)} is not known; there are {', '.join(ENGINES)}, and gpushim configure podman"
        )
    if config_mode not in ("", "config-file"):
        raise GpushimError(
            f"--config-mode={quote(config_mode)} is not done here; gpushim configure podman --hooks registers a hook"
        )
    if is_nvidia_runtime(path):
        show.say(f"warning: {path} is NVIDIA's name; the engine gets gpushim-runtime", error=True)
        path = ""
    words = [engine, "--runtime-name", name, "--force"]
    words += ["--config", config] if config else []
    words += ["--runtime-path", path] if path else []
    chosen = {"--set-as-default": default, "--cdi": cdi_, "--dry-run": dry_run}
    _run_command(configure, [*words, *[word for word, is_set in chosen.items() if is_set]])


@main.group(invoke_without_command=True)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of NVIDIA's config.toml.")
@click.option("--in-place", "-i", "overwrite", is_flag=True, help="Write gpushim's config.toml.")
@click.option("--config-file", "--config", "-c", "source", default="", hidden=True)
@click.option("--output", "-o", default="", hidden=True)
@click.pass_context
def config(ctx: click.Context, sets: tuple[str, ...], overwrite: bool, source: str, output: str) -> None:
    """Show gpushim's config.toml, or translate keys of NVIDIA's into it.

    There is no /etc/nvidia-container-runtime/config.toml here: `gpushim migrate` takes one over.
    """
    if ctx.invoked_subcommand:
        return
    if output:
        raise GpushimError(f"--output {quote(output)} is not done here; redirect stdout, or use --in-place")
    config_path = system.config_path()
    if source:
        text = f"warning: {source} is not read; gpushim's is {config_path}, and gpushim migrate --from takes one over"
        show.say(text, error=True)
    rows = [migrate.translate({key: value})[0] for key, value in map(_parse_set, sets)]
    for row in rows:
        show.say(f"{row.key}: {row.becomes}", error=True)
    changes = migrate.list_changes(rows, config_path)
    if overwrite:
        for note in files.apply(changes):
            click.echo(f"note: {note}", err=True)
        migrate.check_complete(rows, "--set", "leave it out")
        return
    data = changes[0].new if changes else files.read(config_path)
    click.echo((data or b"# all is as by default; gpushim config show lists it\n").decode(), nl=False)
    migrate.check_complete(rows, "--set", "leave it out")


def _parse_set(word: str) -> tuple[str, Any]:
    """Parse the value of one --set as NVIDIA's does: true may be left out, and colons separate a list's entries."""
    key, equals, value = word.partition("=")
    if key not in KEYS:
        raise GpushimError(f"--set {quote(key)}: undefined field; gpushim config show lists gpushim's own")
    kind = KEYS[key].kind
    if kind is bool:
        if value not in (*TRUE, *FALSE) and equals:
            raise GpushimError(f"--set {quote(word)}: want true or false")
        return key, value not in FALSE
    if not equals:
        raise GpushimError(f"--set {quote(word)}: want KEY=VALUE")
    return key, value.split(":") if kind is list else value


@config.command("default")
def default_config() -> None:
    """Show gpushim's settings with their defaults."""
    defaults: Any = policy.defaults()  # by names that are data
    for section, entries in defaults.items():
        show.say(f"[{section}]")
        for key, value in entries.items():
            show.text(migrate.format_setting(key, value))
        show.say()


@main.group("system")
def nodes() -> None:
    """Make the driver's device nodes, and links to them."""


def _build_words(driver_root: str, dev_root: str, dry_run: bool) -> list[str]:
    root = dev_root or driver_root
    return [*(["--dev-root", root] if root else []), *(["--dry-run"] if dry_run else [])]


_DRIVER_ROOT = click.option("--driver-root", "--root", default="", envvar=["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"])
_DEV_ROOT = click.option("--dev-root", default="", help="The directory whose dev/ has the nodes.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what is missing.")


@nodes.command("create-device-nodes")
@_DRIVER_ROOT
@_DEV_ROOT
@_DRY_RUN
@_accept_ignored(flags=("--control-devices", "--load-kernel-modules"))
def device_nodes(driver_root: str, dev_root: str, dry_run: bool) -> None:
    """Make the nodes that are missing, as `gpushim system create-device-nodes`."""
    _run_command(create_device_nodes, _build_words(driver_root, dev_root, dry_run))


@nodes.command("create-dev-char-symlinks")
@_DRIVER_ROOT
@_DEV_ROOT
@_DRY_RUN
@click.option("--dev-char-path", default="/dev/char", hidden=True)
@click.option("--create-device-nodes", "nodes", is_flag=True, help="Make the nodes first.")
@_accept_ignored(flags=("--create-all", "--load-kernel-modules"))
def dev_char_symlinks(driver_root: str, dev_root: str, dry_run: bool, dev_char_path: str, nodes: bool) -> None:
    """Make the links below /dev/char, as `gpushim system create-dev-char-links`."""
    if dev_char_path.rstrip("/") != "/dev/char":
        raise GpushimError(f"--dev-char-path={quote(dev_char_path)} is not done here; links are made below /dev/char")
    command = create_device_nodes if nodes else create_dev_char_links
    _run_command(command, _build_words(driver_root, dev_root, dry_run))
