"""What this node offers to claims now, as a command sees it beside the driver: devices, taints, and who has them.

Changes nothing but a snapshot that is out of date. What cannot be read is said.
Out of scope: what the driver makes of it (claims_front.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.dra import newest, spec, taints
from gpuplugin.health import reason
from gpuplugin.health.health import Health
from gpuplugin.mps import mps, of_claims
from gpuplugin.processes import instances
from gpuplugin.record import allocations_file, transitions
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.record_form import LOST
from gpuplugin.settings import resources
from gpuplugin.snapshot import node_snapshot, release
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from gpushim.ground.errors import FAILED, INVENTORY, GpushimError, visible
from gpushim.paths import trust
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpuplugin.dra.offered import Offered
    from gpuplugin.health.reason import Reason
    from gpuplugin.record import record_form
    from gpuplugin.record.record_form import Record
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

SECONDS, KUBELETS = 2.0, 8.0  # for the answer of the driver that runs, and where it asks kubelet first
HEALTH = "health.json"  # in the directory of what the plugin keeps
FLAGS = ("exclude", "taint-effect", "disable-healthchecks", "enable-healthchecks", "config-file")  # that count here
UNWATCHED = "whether GPUs are healthy is not known: "
SINCE_BOOT = "what a claim or pod had before is listed when the driver or the device plugin next writes it"


class NodeState(NamedTuple):
    """What this node offers, and who has what.

    Attributes:
        snapshot: of the host's inventory.
        offered: the devices.
        indices: of them, such as 0 or 1:0, by UUID.
        why: what is wrong with devices, sentences by UUID.
        record: who has what; None if that is not known.
        notes: sentences about all of it.
        watched: whether the driver watches health now.
        status: what the driver that runs tells of itself (Status.asked); nothing if it does not.
    """

    snapshot: Snapshot
    offered: Sequence[Offered]
    indices: Mapping[str, str]
    why: Mapping[str, str]
    record: Record | None
    notes: Sequence[str]
    watched: bool = True
    status: Mapping[str, Any] = {}


def present(settings: Settings) -> NodeState:
    """Return what counts now.

    Args:
        settings: in force.

    Raises:
        GpushimError: the host cannot serve GPUs, or is not known.
    """
    if closed := [*filter(None, map(_closed, (release.folder(), allocations_file.folder())))]:
        raise GpushimError(closed[0], FAILED)
    snapshot = node_snapshot.current()
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], INVENTORY)
    devices, lacks, lacking = spec.devices(snapshot, settings)
    status = _status()
    problem = _problem(status)
    notes = [*settings.notes, *excluded(settings, snapshot), *filter(None, [lacking, problem])]
    reasons_by_uuid, unwatched = reasons(settings, snapshot)
    notes += [unwatched] * bool(unwatched)
    record = _read_record(notes)
    _, sentences = tainted(settings, snapshot, reasons_by_uuid, record)
    return NodeState(
        snapshot,
        [device for device in devices if device.uuid not in lacks],
        {uuid: unit.index for uuid, unit in resources.units(snapshot).items()},
        sentences,
        record,
        notes,
        os.path.lexists(f"{release.folder()}/{HEALTH}") and not problem,
        status,
    )


def unseen(flags: Collection[str]) -> list[str]:
    """Return which flags of the driver that runs are not known here, in a sentence, as others may count there.

    Args:
        flags: names of those that this command has.
    """
    unknown = [f"--{flag}" for flag in FLAGS if flag not in flags]
    return [
        f"settings are those of config.toml and variables here; of the driver that runs {', '.join(unknown)} are not "
        "seen: gpushim-dra-driver --explain-claim takes such flags, too"
    ] * bool(unknown)


def tainted(
    settings: Settings, snapshot: Snapshot, reasons: Mapping[str, list[Reason]], record: Record | None
) -> tuple[dict[str, list[dict[str, str]]], dict[str, str]]:
    """Return the taints of devices, as the driver makes them, and what is wrong with these, sentences; both by UUID.

    Args:
        settings: in force.
        snapshot: of the host's inventory.
        reasons: why devices are unhealthy, by UUID.
        record: who has what.
    """
    unfinished = {**(transitions.find_lost_claims(record) if record else {}), **_owed()}
    sentences: dict[str, list[str]] = {}
    for texts in (reason.texts(reasons, snapshot), taints.problems(snapshot), unfinished):
        for uuid, text in texts.items():
            row = sentences.setdefault(uuid, [])
            row += [] if any(text in sentence for sentence in row) else [text]
    taints_by_uuid = taints.taints(
        reasons, snapshot, record, str(settings.values["taint-effect"]), unfinished=unfinished
    )
    return taints_by_uuid, {uuid: "; ".join(row) for uuid, row in sentences.items()}


def excluded(settings: Settings, snapshot: Snapshot) -> list[str]:
    """Return what `exclude` leaves out of this host, and what it or `on-demand` names in vain, in sentences."""
    sentence = resources.left_out(snapshot, spec.excluded(settings.values))
    return [*filter(None, [sentence]), *resources.absent(snapshot, settings.values["exclude"])]


def _closed(folder: str) -> str:
    """Return that this user may not look into a directory, or ""."""
    closed = os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)
    return f"{folder} is root's; run this as root" if closed else ""


def _problem(status: Mapping[str, Any]) -> str:
    """Return why nothing is given out, "" if something may be."""
    if not trust.ours(release.folder()) or not instances.anyone(release.folder(), name=newest.LOCK):
        return "no gpushim-dra-driver runs on this node, without which no claim gets a GPU here"
    if os.path.lexists(release.Release().path):
        return release.PROBLEM
    path = _rival(status)
    return spec.RIVAL.format(path) if path else ""


def rival() -> str | None:
    """Return where another giver's driver of this name listens, "" if none does, as the driver that runs has found.

    Returns:
        None if it does not say.
    """
    return _rival(_status())


def _status() -> Mapping[str, Any]:
    status = plugin_socket.status(system.state_dir(), SECONDS).get("dra")
    return status if isinstance(status, dict) else {}


def _rival(status: Mapping[str, Any]) -> str | None:
    """As `rival`; an answer may be an error alone."""
    return str(status["rival"] or "") if "rival" in status else None


def refusal(node: NodeState, namespace: str, name: str) -> str:
    """Return why the driver that runs refused a claim just now; "" if it did not, or does not say.

    Args:
        node: what counts here.
        namespace: of the claim.
        name: of it.
    """
    rows = node.status.get("refusals")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and (row.get("namespace"), row.get("name")) == (namespace, name):
            return visible(str(row.get("why")))
    return ""


def describe_loss(node: NodeState, uid: str, claim: record_form.Claim) -> str:
    """Return why what a claim had that is over is not free, by the driver that runs; "" if not so.

    Args:
        node: what counts here.
        uid: of the claim.
        claim: as the record has it.
    """
    if claim["state"] != LOST:
        return ""
    sentences = node.status.get("lost")
    sentence = sentences.get(uid) if isinstance(sentences, dict) else None
    return visible(sentence) if isinstance(sentence, str) else transitions.describe_ending(claim)


def listed() -> list[Claim] | None:
    """Return what kubelet tells the driver that runs of claims, as podresources.listed; None if one does not say."""
    rows: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        rows = json.loads(plugin_socket.exchange(system.state_dir(), b'{"do": "claims"}\n', KUBELETS))["claims"]
    try:
        return [Claim(**{**row, "cdi": tuple(row["cdi"]), "uids": frozenset(row["uids"])}) for row in rows]
    except (TypeError, KeyError):  # None, or of another version
        return None


def _owed() -> dict[str, str]:
    """Return what is still as a claim that is over had it, by UUID, as far as this user may read that."""
    state = system.state_dir()
    claims = of_claims.claims_by_group(state)
    return {uuid: mps.unfinished(name) for uuid, name in mps.unrestored(state, ()).items() if name in claims}


def describe_pods(record: Record | None) -> dict[str, str]:
    """Return who has what by the device plugin, by UUID."""
    rows = transitions.list_allocations(record) if record else ()
    return {
        allocation["device"]: f"{transitions.owner_of(allocation)} has it"
        for _, _, allocation in rows
        if allocation["pod"] or allocation["uid"]
    }


def reasons(settings: Settings, snapshot: Snapshot) -> tuple[dict[str, list[Reason]], str]:
    """Return why devices are unhealthy, by UUID, as who watches them, or did last, wrote it; or why nobody knows it.

    Args:
        settings: in force.
        snapshot: of the host's inventory.
    """
    path, closed = f"{release.folder()}/{HEALTH}", _closed(release.folder())
    if closed or not (trust.ours(release.folder()) and os.path.lexists(path)):
        return {}, UNWATCHED + (closed or "neither driver nor device plugin has watched them yet")
    return Health(path, settings.checks).problems(snapshot, system.clock()), ""


def _read_record(notes: list[str]) -> Record | None:
    """Return the record in this boot, None if it says nothing."""
    file = AllocationsFile()
    try:
        record = file.read()
    except GpushimError as error:
        notes.append(str(error))
        return None
    if record is None:
        if os.path.lexists(file.path):
            notes.append(f"{file.path} is damaged: who has which GPU is not known")
        return None
    if record["boot"] != file.boot:
        notes.append(f"nobody has written {file.path} since the boot; {SINCE_BOOT}")
    elif record["unknown"]:
        notes.append(f"{file.path} does not have all that was given out: {record['unknown']}")
    return file.current(record)
