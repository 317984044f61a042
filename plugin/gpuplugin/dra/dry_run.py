"""What would be offered to claims and why, in lines for people (`gpushim-dra-driver --check`).

Changes nothing but a snapshot that is out of date, as a create would, and asks no API server.
Out of scope: health, which a driver that runs watches.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuplugin.book import book, by_device, claimed
from gpuplugin.dra import offered, spec, taints
from gpuplugin.mps import mps, of_claims
from gpuplugin.snapshot import node_snapshot
from gpushim.cli import show
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gpuplugin.dra.offered import Offered
    from gpuplugin.settings.settings import Settings

COLUMNS = ("DEVICE", "PRODUCT", "PROFILE", "HELD BY", "CANNOT BE GIVEN OUT, BECAUSE")
FOLDERS = ("plugins_registry", "plugins", "pod-resources")  # of kubelet's, in each of which something is looked for


def tell(settings: Settings, rival: Callable[[str], str]) -> None:
    """Print it.

    Args:
        settings: in force.
        rival: returns where another giver's driver of this name listens, or "", by kubelet's directory.

    Raises:
        GpushimError: nothing would be offered.
    """
    kubelet_dir, values = str(settings.values["kubelet-dir"]), settings.values
    for note in (*settings.notes, *_missing(kubelet_dir)):
        show.say(f"note: {note}")
    snapshot = node_snapshot.current()
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    devices, lacks, why = spec.devices(snapshot, values)
    if not devices:
        show.say("nothing is offered: this host has no GPU to give out to claims")
    _list(devices, lacks, {**_owed(), **taints.problems(snapshot)})
    show.say(book.summary(book.Book()))
    if values["exclude"]:
        show.say(f"Left out by exclude: {', '.join(values['exclude'])}.")
    if there := rival(kubelet_dir):
        raise GpushimError(spec.RIVAL.format(there), FAILED)
    if why:
        raise GpushimError(why, FAILED)


def _missing(kubelet_dir: str) -> Iterator[str]:
    if not os.path.isdir(kubelet_dir):
        yield f"there is no {kubelet_dir}, where kubelet finds drivers; is its directory another (kubelet-dir)?"
        return
    for name in FOLDERS:
        if not os.path.isdir(f"{kubelet_dir}/{name}"):
            yield f"there is no {kubelet_dir}/{name}, which kubelet makes when it starts"


def _list(devices: Sequence[Offered], lacks: Collection[str], problems: Mapping[str, str]) -> None:
    why, held = {**problems, **dict.fromkeys(lacks, "the CDI spec does not have it")}, _held()
    slices = offered.slices([one for one in devices if one.uuid not in lacks], {})
    well = [one for one in devices if one.uuid not in why]
    show.say(f"{OWN_DRIVER}: {len(well)} of {len(devices)} can be given out, in {len(slices)} ResourceSlices")
    rows = []
    for one in devices:
        product, profile = (one.body["attributes"][key]["string"] for key in ("productName", "profile"))
        rows.append([one.name, product, profile, held.get(one.uuid, ""), why.get(one.uuid, "")])
    show.table(COLUMNS, rows)
    show.say()


def _owed() -> dict[str, str]:
    """Say what is still as a claim that is over had it, by UUID, as far as this user may read that."""
    state = system.state_dir()
    claims = of_claims.left(state)
    return {uuid: mps.unfinished(name) for uuid, name in mps.unrestored(state, ()).items() if name in claims}


def _held() -> dict[str, str]:
    """Say who has devices, by UUID, as far as this user may read that."""
    found: dict[str, str] = {}
    try:
        shared = book.Book()
        page, (_, rows, _) = shared.read(), claimed.read()
    except (GpushimError, OSError):
        return found
    if page and page["boot"] == shared.boot:
        for *_, one in by_device.entries(page):
            found[one["uuid"]] = "device plugin" if one["giver"] == by_device.PLUGIN else one["to"]
    claims = {uuid: f"claim {row['namespace']}/{row['name']}" for row in rows.values() for uuid in claimed.held(row)}
    return {**found, **claims}
