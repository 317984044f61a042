"""What kubelet has promised on disk, which can be read while it is away: its checkpoints of devices and of claims.

A pod that they name gets its devices back when kubelet starts, so that these must be found as they were. Of ended
pods they know late: a kubelet that answers knows better (podresources.py).
Out of scope: their form (gpushim.containers.kubelet), what follows (kubelet_view.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.book import claimed as claims_file
from gpuplugin.book.by_device import CLAIM
from gpuplugin.devices.changes import UNNAMED, UNTOLD
from gpuplugin.kubelet import cgroups
from gpuplugin.settings.resources import Share
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.containers import kubelet
from gpushim.containers.kubelet import which
from gpushim.ground import system

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gpuplugin.book.claimed import Known
    from gpuplugin.devices.changes import Units
    from gpuplugin.settings.resources import Device
    from gpushim.containers.kubelet import Claim
    from gpushim.ground.model import Snapshot

A_POD = "a pod of kubelet's checkpoint"
TICK = 0.01  # seconds by which a file's time may be behind: the kernel's clock for these moves in steps
PIPES = "variable CUDA_MPS_PIPE_DIRECTORY="  # which only a container of an MPS daemon is told


@dataclass
class Promised:
    """What both files say.

    Attributes:
        held: who has what, by resource and id; of a claim by CLAIM and the UUID.
        served: what was given out last, as far as ids tell; by resource and id.
        there: there is one of the files.
        damaged: why one says nothing, or "".
    """

    held: dict[str, dict[str, str]] = field(default_factory=dict)
    served: dict[str, dict[str, Device]] = field(default_factory=dict)
    there: bool = False
    damaged: str = ""


def read(folder: str, snapshot: Snapshot, units: Units) -> Promised:
    """Read both.

    Args:
        folder: kubelet's directory.
        snapshot: of the host's inventory.
        units: what the host has.
    """
    found = Promised(there=os.path.lexists(f"{folder}/{kubelet.CLAIMS}"))
    try:
        checkpoint = kubelet.checkpoint(folder)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        found.there, found.damaged = True, _damaged(f"{kubelet.plugins(folder)}/{kubelet.CHECKPOINT}", error)
    else:
        found.there = True
        _take(found, checkpoint, units)
    try:
        for who, uuid in claimed(kubelet.claims(folder), snapshot, units, claims_file.known()):
            found.held.setdefault(CLAIM, {})[uuid] = who
    except (OSError, ValueError) as error:
        found.damaged = _damaged(f"{folder}/{kubelet.CLAIMS}", error)
    return found


class Remembered(NamedTuple):
    """What kubelet knows of after a start.

    Attributes:
        uids: of the pods that have devices of plugins, by resource and id with a blank between them.
        resources: that plugins have listed.
        written: when it had written that, in seconds since boot; an hour off if the clock was set by one since.
    """

    uids: Mapping[str, str]
    written: float
    resources: Collection[str] = ()


def remembered(folder: str) -> Remembered | None:
    """List what kubelet has given out by device plugins, and knows of after a start.

    It writes that at each Allocate, and at each list that a plugin sends. What ended pods had it drops when it is
    asked (pod-resources), unless it still waits for the API server (UpdateAllocatedDevices in its devicemanager).

    Args:
        folder: kubelet's directory.

    Returns:
        None if it cannot be read, with which kubelet would begin without any of it.
    """
    try:
        written = os.stat(f"{kubelet.plugins(folder)}/{kubelet.CHECKPOINT}").st_mtime  # before: it may be replaced
        found = kubelet.checkpoint(folder)
    except (OSError, ValueError):
        return None
    uids = {f"{one.resource} {name}": one.uid for one in found.given for name in one.devices}
    return Remembered(uids, system.clock() - time.time() + written + TICK, found.registered.keys())


def by_uid(uid: str) -> str:
    """Name a pod that kubelet does not list by its checkpoint."""
    return f"{UNNAMED}{uid}"


def claimed(
    claims: Iterable[Claim], snapshot: Snapshot, units: Units, given: Known | None = None
) -> Iterator[tuple[str, str]]:
    """List who has which GPU or MIG instance by claims: what a claim may have, it has.

    Args:
        claims: as kubelet has them.
        snapshot: of the host's inventory.
        units: what the host has.
        given: what gpushim's driver has given to claims.
    """
    for one in claims:
        mine = given.of(one) if given else None
        if mine is not None:
            yield from [(named(one.namespace, one.name, one.driver), mine)] if mine in units else []
            continue
        for uuid in units if (found := which(one, snapshot)) is None else found:
            yield named(one.namespace, one.name, one.driver), uuid


def holding(folder: str, units: Collection[str]) -> dict[str, str]:
    """Say who has what by claims that gpushim's driver has prepared and not undone, whoever is away meanwhile.

    kubelet (pod-resources) lists neither a claim that an init container uses nor, at its start, all others. But it
    keeps each claim, over boots, from before it asks the driver until the driver has undone it. So a claim of the
    driver's file that kubelet does not keep has ended when no process of its pods is left; where it cannot be seen
    what kubelet keeps, none has. One that has lost its file begins with an empty one, which says nothing of claims
    whose pods are not known.

    Args:
        folder: kubelet's directory.
        units: UUIDs of what the host has.

    Returns:
        claims by UUID.

    Raises:
        GpushimError: as for `gpuplugin.book.claimed.read`.
    """
    rows = claims_file.read()[1]
    try:
        live: Collection[str] = kubelet.claim_uids(folder) if rows else ()
    except (OSError, ValueError):
        live = rows
    dropped = {uid: claims_file.pods_of(row) for uid, row in rows.items() if uid not in live}
    running = cgroups.running(frozenset(pod for pods in dropped.values() for pod in pods))
    over = {uid for uid, pods in dropped.items() if not running.intersection(pods) and (pods or live)}
    mine = {uid: row for uid, row in rows.items() if uid not in over}
    return {
        uuid: named(row["namespace"], row["name"], kubelet.OWN_DRIVER)
        for row in mine.values()
        for uuid in claims_file.held(row)
        if uuid in units
    }


def named(namespace: str, name: str, driver: str) -> str:
    """Name a claim, as the book does."""
    return f"claim {namespace}/{name} of {driver}"


def _damaged(path: str, error: Exception) -> str:
    return f"{path} cannot be used: {error.strerror if isinstance(error, OSError) else error}"


def _take(found: Promised, checkpoint: kubelet.Checkpoint, units: Units) -> None:
    """Go by what was given to pods, and for the rest by what was registered."""
    for one in checkpoint.given:
        share = next(
            (Share(MPS, group=_group(variable)) for variable in one.answer if variable.startswith(PIPES)), None
        )
        share = share or (Share(TIME_SLICING) if one.answer else Share(UNTOLD))
        for name in one.devices:
            if _add(found, one.resource, name, units, share):
                found.held.setdefault(one.resource, {})[name] = A_POD
    given = {one.uuid for row in found.served.values() for one in row.values()}
    listed: dict[str, set[str]] = {}  # resources of what no pod has
    for resource, ids in checkpoint.registered.items():
        for name in ids:
            listed.setdefault(name.partition("::")[0], set()).add(resource)
    for resource, ids in checkpoint.registered.items():
        for name in ids:
            uuid = name.partition("::")[0]
            if uuid not in given and len(listed[uuid]) == 1:
                _add(found, resource, name, units, Share(UNTOLD))
            elif resource in found.served and uuid in given:
                alike = next((one for one in found.served[resource].values() if one.uuid == uuid), None)
                if alike and ("::" in alike.id) == ("::" in name):
                    _add(found, resource, name, units, alike.share or Share(UNTOLD))


def _group(variable: str) -> str:
    return variable.rpartition("/")[0].rpartition("/")[2]  # .../GROUP/pipe


def _add(found: Promised, resource: str, name: str, units: Units, share: Share) -> bool:
    """Take note of a device of this host's."""
    unit = units.get(name.partition("::")[0])
    if unit is None:
        return False
    known = share if "::" in name else Share(UNTOLD)  # one replica of a GPU has no number
    found.served.setdefault(resource, {})[name] = replace(unit, id=name, share=known)
    return True
