"""`gpushim system`: device nodes of the driver, and links to them, made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushim.cli import show
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import FAILED, INVENTORY, GpushimError
from gpushim.inventory import ensure, procfs
from gpushim.inventory.nodes import link, make, missing_links, missing_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    _Listing = Callable[[str, str], list[str]]

_ROOT = click.option(
    "--dev-root",
    default="",
    metavar="DIRECTORY",
    help="The directory whose dev/ has the nodes, instead of the configuration's.",
)
_DRY = click.option("--dry-run", is_flag=True, help="Only show what is missing.")
_FORM = show.format_option("text", "json")


@click.group("system", cls=show.Commands)
def nodes() -> None:
    """Make the driver's device nodes, and links to them.

    A refresh does both as root; these commands are for boot scripts and driver containers.
    """


@nodes.command("create-device-nodes")
@_ROOT
@_DRY
@_FORM
def create_device_nodes(dev_root: str, dry_run: bool, form: str) -> None:
    """Make the driver's device nodes that are missing or wrong, and links to them below /dev/char.

    Numbers, mode and owner are those that the loaded driver tells in /proc. Nodes that are right stay as they are.
    """
    _run(
        lambda root, proc: missing_nodes(root, proc) + _links(root, proc),
        make,
        dev_root,
        dry_run,
        form,
    )


@nodes.command("create-dev-char-links")
@_ROOT
@_DRY
@_FORM
def create_dev_char_links(dev_root: str, dry_run: bool, form: str) -> None:
    """Make the links /dev/char/MAJOR:MINOR to the driver's device nodes that are there.

    Some releases of systemd and runc look for a device by this link; without it a container loses its GPU at the next
    systemctl daemon-reload.
    """
    _run(_links, link, dev_root, dry_run, form)


def _find_roots(dev_root: str) -> tuple[str, str]:
    if dev_root and not dev_root.startswith("/"):
        raise click.UsageError(f"--dev-root {dev_root} is a relative path; give the whole path")
    driver = policy.load(system.config_path())["driver"]
    proc = ensure.proc_dir(driver["root"])
    if procfs.module_version(proc) is None:
        raise GpushimError(
            f"no NVIDIA driver is loaded ({proc}/driver/nvidia/version is not there): load it (modprobe nvidia)",
            INVENTORY,
        )
    return (dev_root.rstrip("/") or "/") if dev_root else driver["dev-root"], proc


def _links(root: str, proc: str) -> list[str]:
    return [host for host, _, _ in missing_links(root, proc)]


def _run(missing: _Listing, make: _Listing, dev_root: str, dry_run: bool, form: str) -> None:
    """Make what is missing, and print it; both functions take the device root and a /proc."""
    root, proc = _find_roots(dev_root)
    before = missing(root, proc)
    notes = [] if dry_run else make(root, proc)
    missing_paths = before if dry_run else missing(root, proc)
    made = [path for path in before if path not in missing_paths]
    if form == "json":
        show.emit(form, {"missing": before, "made": made})
    else:
        for path in before if dry_run else made:
            show.say(f"{'would make' if dry_run else 'made'} {path}")
    if notes:
        raise GpushimError("; ".join(notes), FAILED)
    if not before and form != "json":
        show.say("nothing is missing")
