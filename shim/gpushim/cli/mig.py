"""`gpushim mig`: what GPUs are cut into, and what a file of nvidia-mig-parted's says that they are to be cut into."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable

import click

from gpushim.cli import show
from gpushim.ground import seen, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import save
from gpushim.mig import cut, cut_request, fit, layout_file, session
from gpushim.paths import lock
from gpushim.refresh import refresh

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.ground.model import Gpu, Snapshot
    from gpushim.mig.cut import Change, Users
    from gpushim.mig.fit import Instance

COLUMNS = ("INSTANCE", "PROFILE", "START:SIZE", "CONTAINERS")
NO_GPU = "the layout is about no GPU of this host"


def _layout_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("-c", "--config", metavar="NAME", help="The layout, where FILE has several.")(command)
    return click.argument("file", metavar="FILE")(command)


@click.group("mig", cls=show.Commands)
def mig() -> None:
    """Cut GPUs into MIG instances, as a file of nvidia-mig-parted's says."""


@mig.command("show")
@show.format_option("table", "json")
def show_instances(form: str) -> None:
    """Show the MIG mode of each GPU, its instances, the containers that have them, and the profiles there are."""
    with session.opened() as (nvml, inventory):
        users = _users(inventory)
        states = [
            (gpu, cut.look(nvml, gpu)) for gpu in inventory["gpus"] if gpu["mig_capable"] and not gpu["problem"]
        ]
    for gpu in inventory["gpus"]:
        if gpu["problem"]:
            show.say(f"note: {gpu['problem']}", error=True)
    rows: list[dict[str, Any]] = []
    texts: dict[str, list[str]] = {}
    for gpu, state in states:
        mode = ("on" if state.enabled else "off") + (" until a reset" if state.pending else "")
        names = cut.name_instances(inventory, gpu)
        rows += [*_rows(gpu, mode, state.instances, names, users)] or [_row(gpu, mode, cut.containers(users, gpu))]
        profiles = ", ".join(f"{profile.name}: {profile.most}" for profile in state.profiles.values())
        texts.setdefault(profiles or "what NVML tells in MIG mode", []).append(str(gpu["index"]))
    _emit(form, "MODE", rows, "this host has no GPU that MIG can divide")
    for profiles, indices in texts.items() if form == "table" else ():
        show.say(f"at most, GPU {', '.join(indices)} may have {profiles}")


@mig.command()
@_layout_options
@show.format_option("table", "json")
def plan(file: str, config: str | None, form: str) -> None:
    """Show what `gpushim mig apply` would keep, remove and make, and who has that.

    It fails as that would: if something of the layout does not fit, or containers have what must go.
    """
    entries = layout_file.read(file, config)
    with session.opened() as (nvml, inventory):
        users = _users(inventory)
        changes = cut.plan(nvml, inventory, entries, users)
    _emit(form, "CHANGE", [row for change in changes for row in _steps(change, users)], NO_GPU)
    for change in changes:
        if change.after is None:
            called, counts = cut.call(change.gpu), fit.text(change.entry.counts)
            show.say(f"note: NVML tells only in MIG mode whether {called} has room for {counts}", error=True)
    cut.refuse_used(changes, users)


@mig.command()
@_layout_options
def apply(file: str, config: str | None) -> None:
    """Cut the GPUs of a layout as it says, and list them again, so that the next containers have them.

    Only what differs is changed. Containers are left alone: while one has what must go, nothing is changed. A GPU for
    which it fails is as it was before, but for one whose mode waits for a reset; after a kill, the next call goes on.
    """
    entries = layout_file.read(file, config)
    if os.geteuid():
        raise GpushimError(f"root alone may cut GPUs; {seen.AS_ROOT}")
    state = system.state_dir()
    save.prepare(state, system.config_path())
    with lock.held(f"{state}/{cut_request.LOCK}"), session.opened(refresh.LONGEST) as (nvml, inventory):
        users = _users(inventory)
        changes = cut.plan(nvml, inventory, entries, users)
        cut.refuse_used(changes, users)
        if not changes:
            show.say(NO_GPU)
        waiting: list[str] = []  # for a reset
        try:
            for change in changes:
                try:
                    if change.differs:
                        cut.carry_out(nvml, inventory, change)
                except cut.PendingError as error:
                    waiting.append(str(error))
                    continue
                bare = "in MIG mode, without instances" if change.entry.enabled else "without MIG mode"
                layout = fit.text(change.entry.counts) if change.entry.counts else bare
                show.say(f"GPU {change.gpu['index']} is {'now' if change.differs else 'already'} {layout}")
            if waiting:
                raise cut.PendingError("; ".join(waiting))
        finally:  # also what a process has left that was killed before it came to this
            snapshot = refresh.refresh(force=True, people=True)
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])


def _users(inventory: Snapshot) -> Users:
    users, notes = cut.list_users(inventory)
    for note in notes:
        show.say(f"note: {note}", error=True)
    return users


def _steps(change: Change, users: Users) -> Iterator[dict[str, Any]]:
    gpu, removed = change.gpu, change.removed
    if change.switches:
        yield _row(gpu, f"mode {'on' if change.entry.enabled else 'off'}", cut.containers(users, gpu))
    staying = {gi: instance for gi, instance in change.before.instances.items() if gi not in removed}
    yield from _rows(gpu, "keep", staying, change.names, users)
    yield from _rows(gpu, "remove", removed, change.names, users)
    yield from (_row(gpu, "make", [], instance) for instance in change.made)


def _rows(
    gpu: Gpu, word: str, instances: Mapping[int, Instance], names: Mapping[int, list[str]], users: Users
) -> Iterator[dict[str, Any]]:
    for gi, instance in instances.items():
        yield _row(gpu, word, cut.containers(users, gpu, names.get(gi, [])), instance, names.get(gi))


def _row(
    gpu: Gpu, word: str, containers: list[str], instance: Instance | None = None, names: list[str] | None = None
) -> dict[str, Any]:
    return {
        "gpu": gpu["index"],
        "state": word,
        "instances": names or [],
        "profile": instance.title if instance else None,
        "placement": instance.placement if instance else None,
        "containers": containers,
    }


def _emit(form: str, head: str, rows: list[dict[str, Any]], nothing: str) -> None:
    if not rows and form == "table":
        show.say(nothing)
        return
    cells = [
        [
            row["gpu"],
            row["state"],
            " ".join(row["instances"]),
            row["profile"],
            row["placement"] and "{}:{}".format(*row["placement"]),
            ", ".join(row["containers"]),
        ]
        for row in rows
    ]
    show.emit(form, rows, ("GPU", head, *COLUMNS), cells)
