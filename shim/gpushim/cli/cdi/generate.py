"""`gpushim cdi generate`: a CDI spec of this host, on stdout or in a file, with the options of nvidia-ctk's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from gpushim.cdi.generate import publish, write
from gpushim.cli import show
from gpushim.cli.cdi import output
from gpushim.config import policy
from gpushim.ground import logs, system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import present
from gpushim.oci.device_names import is_qualified

if TYPE_CHECKING:
    from gpushim.ground.model import Policy, Snapshot

# Options that scripts for nvidia-ctk have, and that cannot mean anything here: with a value, and as flags.
_VALUES = (
    "--config-search-path", "--csv.compat-container-root", "--csv.file", "--csv.ignore-pattern", "--disable-hook",
    "--disable-hooks", "--enable-hook", "--enable-hooks", "--feature-flag", "--feature-flags", "--ldconfig-path",
    "--library-search-path",
)  # fmt: skip
_THEIRS = ("nvidia-cdi-hook", "nvidia-ctk")  # the programs of NVIDIA's specs, which do not do our hook's work
_FORMAT = "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT"


def _ignored_options(command: Callable[..., None]) -> Callable[..., None]:
    def warn(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value:
            show.say(f"warning: {option.opts[0]} is ignored: gpushim decides that itself", error=True)

    for name in _VALUES:
        option = click.option(name, multiple=True, hidden=True, expose_value=False, callback=warn)
        command = option(command)
    return command


@click.command()
@click.option(
    "--output",
    "target",
    default="",
    metavar="FILE",
    envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
    help="Where the spec goes; engines read /etc/cdi and /var/run/cdi. [default: stdout]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "yaml"]),
    envvar=_FORMAT,
    help="What FILE's extension does not say. [default: yaml]",
)
@click.option(
    "--mode",
    "--discovery-mode",
    "mode",
    type=click.Choice(write.MODES),
    default="auto",
    envvar="NVIDIA_CTK_CDI_GENERATE_MODE",
    show_default=True,
    help="Which devices.",
)
@click.option(
    "--driver-root",
    metavar="DIRECTORY",
    envvar="NVIDIA_CTK_DRIVER_ROOT",
    help="Where the driver's files are. [default: [driver] root]",
)
@click.option(
    "--dev-root",
    metavar="DIRECTORY",
    envvar="NVIDIA_CTK_DEV_ROOT",
    help="The directory whose dev/ has the nodes. [default: [driver] dev-root, or --driver-root]",
)
@click.option(
    "--device-name-strategy",
    "strategies",
    envvar="NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
    metavar="NAMES",
    help="index, type-index, uuid. [default: [cdi] device-names]",
    multiple=True,
    callback=output.words,
)
@click.option(
    "--device-id",
    "--device-ids",
    "--device",
    "--devices",
    "ids",
    metavar="NAMES",
    envvar="NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS",
    help="Only these GPUs and MIG instances.",
    multiple=True,
    callback=output.words,
)
@click.option("--no-all-device", is_flag=True, help='No device "all".')
@click.option("--vendor", "--cdi-vendor", "vendor", default="", help="[default: of [cdi] kind]")
@click.option("--class", "--cdi-class", "category", default="", help="[default: of [cdi] kind, or the mode's]")
@click.option(
    "--hook-path",
    "--nvidia-cdi-hook-path",
    "--nvidia-ctk-path",
    "hook",
    default="",
    metavar="FILE",
    help="gpushim-hook, where it is on the host that the spec is for.",
)
@click.option("--force", is_flag=True, help="Replace even a spec that has devices which cannot be listed now.")
@_ignored_options
def generate(
    target: str, form: Optional[str], mode: str, driver_root: Optional[str], dev_root: Optional[str],
    strategies: list[str], ids: list[str], no_all_device: bool, vendor: str, category: str,
    hook: str, force: bool,
) -> None:  # fmt: skip
    """Write a CDI spec of this host's GPUs.

    Every refresh does it by itself, for GPUs, in /var/run/cdi; this is for other places, names and devices. The
    host is listed again, and what gpushim-runtime works with stays as it is.
    """
    settings = _settings(driver_root, dev_root, strategies)
    snapshot = _survey(settings)
    kind = write.kind(mode, settings["cdi"]["kind"], vendor, category)
    if not is_qualified(kind + "=x"):
        raise click.UsageError(f"{kind} is not vendor/class, as CDI writes them")
    notes: list[str] = list(snapshot["notes"])
    hook = _hook(hook)
    if mode == "auto" or mode in write.PLATFORMS:
        _check_platform(mode, snapshot)
        selected = None if not ids or write.ALL in ids else ids
        names = settings["cdi"]["device-names"]
        spec = write.gpu_spec(snapshot, kind, names, notes, hook, selected, not no_all_device)
    else:
        spec = write.mode_spec(mode, snapshot, kind, not no_all_device, hook)
    for note in notes:
        show.say(f"note: {note}", error=True)
    reason = "" if force or target in ("", "-") else publish.emptier(target, spec, snapshot["source"])
    if reason:
        raise GpushimError(f"{reason}; or use --force")
    if target not in ("", "-"):
        publish.check_hook(hook)
    output.put(spec, target, form or "")


def _settings(driver_root: Optional[str], dev_root: Optional[str], strategies: list[str]) -> Any:
    settings = policy.load(system.config_path())
    for option, path in (("--driver-root", driver_root), ("--dev-root", dev_root)):
        if path and not path.startswith("/"):
            raise click.UsageError(f"{path} is not absolute")
        if path and (sentence := policy.no_directory(option, path)):
            raise GpushimError(f"{sentence}; correct it, or start what puts the driver there", INVENTORY)
    if driver_root:
        settings["driver"]["root"] = os.path.normpath(driver_root)
    if driver_root or dev_root:
        settings["driver"]["dev-root"] = os.path.normpath(dev_root or settings["driver"]["root"])
    allowed = policy.schema()["properties"]["cdi"]["properties"]["device-names"]["items"]["enum"]
    for name in strategies:
        if name not in allowed:
            raise click.UsageError(f"{name} is not a way to name devices; choose from {', '.join(allowed)}")
    settings["cdi"]["device-names"] = strategies or settings["cdi"]["device-names"]
    return settings


def _survey(settings: Policy) -> Any:
    logs.start(settings["log"]["format"], settings["log"]["level"], people=True)
    return present.look(settings)


def _check_platform(mode: str, snapshot: Snapshot) -> None:
    platform = write.PLATFORMS.get(mode, snapshot["platform"])
    if platform != snapshot["platform"]:
        raise GpushimError(f"--mode {mode} is for another platform: this host is {snapshot['platform']}; use auto")


def _hook(path: str) -> str:
    if os.path.basename(path) in _THEIRS:
        show.say(f"warning: {path} does not do what gpushim-hook does, which is called instead", error=True)
        return ""
    if path and not path.startswith("/"):
        raise click.UsageError(f"{path} is not absolute")
    return path
