"""What would be offered to claims and why, in lines for people (`gpushim-dra-driver --check`).

Changes nothing but a snapshot that is out of date, as a create would, and asks no API server. Of health it knows what
who watches it has written last.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuplugin.dra import node_state, offered, spec
from gpuplugin.record import transitions
from gpuplugin.record.allocations_file import AllocationsFile, summarize
from gpuplugin.settings import resources
from gpuplugin.snapshot import node_snapshot
from gpushim.cli import show
from gpushim.config.kubeconfig import Kubeconfig
from gpushim.containers.kubelet import OWN_DRIVER, PODS_SOCKET
from gpushim.engines.processes import ask
from gpushim.ground.errors import FAILED, GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gpuplugin.dra.offered import Offered
    from gpuplugin.record.record_form import Record
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

COLUMNS = ("DEVICE", "INDEX", "PRODUCT", "PROFILE", "HELD BY", "CANNOT BE GIVEN OUT, BECAUSE")
FOLDERS = ("plugins_registry", "plugins", "pod-resources")  # of kubelet's, in each of which something is looked for
UNASKED = (
    "whether another driver has this one's name is not known: this Python has no grpcio, and no gpushim-dra-driver "
    "answers"
)
GIVEN = "a container has it by a device plugin"  # or its GPU, whatever the record says of whose container


def tell(settings: Settings, find_rival: Callable[[str], str | None]) -> None:
    """Print it.

    Args:
        settings: in force.
        find_rival: returns where another giver's driver of this name listens, by kubelet's directory; "" if none
            does, None if that is not known.

    Raises:
        GpushimError: nothing would be offered.
    """
    kubelet_dir = str(settings.values["kubelet-dir"])
    _note([*settings.notes, *_missing(kubelet_dir)])
    snapshot = node_snapshot.current()
    if snapshot["error"]:
        raise GpushimError(snapshot["error"]["sentence"], snapshot["error"]["code"])
    devices, lacks, lack = spec.devices(snapshot, settings)
    record = _read_record()
    problems, notes = _problems(devices, settings, snapshot, record)
    _note([*node_state.excluded(settings, snapshot), *notes])
    if not devices:
        show.say("nothing is offered: this host has no GPU to give out to claims")
    indices = {uuid: unit.index for uuid, unit in resources.units(snapshot).items()}
    problems.update(dict.fromkeys(lacks, "the CDI spec does not have it"))
    _list(devices, indices, problems, _find_holders(record), lacks)
    show.say(summarize(AllocationsFile()))
    if path := find_rival(kubelet_dir):
        raise GpushimError(spec.RIVAL.format(path), FAILED)
    _note([UNASKED] * (path is None))
    if lack:
        raise GpushimError(lack, FAILED)
    if not os.environ.get(node_snapshot.POD):  # whose halves share a token; the host's files are not seen there
        Kubeconfig().look(str(settings.values["kubeconfig"]))


def _note(notes: Iterable[str]) -> None:
    for note in notes:
        show.say(f"note: {note}")


def _missing(kubelet_dir: str) -> Iterator[str]:
    if not os.path.isdir(kubelet_dir):
        yield f"there is no {kubelet_dir}, where kubelet finds drivers; is its directory another (kubelet-dir)?"
        return
    for name in FOLDERS:
        if not os.path.isdir(f"{kubelet_dir}/{name}"):
            yield f"there is no {kubelet_dir}/{name}, which kubelet makes when it starts"
    if os.access(socket := f"{kubelet_dir}/{PODS_SOCKET}", os.W_OK) and not ask.listens(socket):
        yield f"nobody listens at {socket}: no kubelet runs"


def _problems(
    devices: Sequence[Offered], settings: Settings, snapshot: Snapshot, record: Record | None
) -> tuple[dict[str, str], list[str]]:
    """Return why devices have taints that keep them from claims, by UUID; and notes of what is unhealthy beside."""
    reasons, doubt = node_state.reasons(settings, snapshot)
    taints, sentences = node_state.tainted(settings, snapshot, reasons, record)
    tainted = {uuid for uuid, row in taints.items() if any(taint["effect"] != offered.NONE for taint in row)}
    mild = [device.uuid for device in devices if device.uuid in taints.keys() - tainted]
    mild_notes = [f"{uuid} can be given out, as taint-effect is {offered.NONE}: {sentences[uuid]}" for uuid in mild]
    pods = node_state.describe_pods(record)
    problems = {
        uuid: "; ".join(texts[uuid] for texts in (sentences, pods) if uuid in texts) or GIVEN for uuid in tainted
    }
    return problems, [*filter(None, [doubt]), *mild_notes]


def _list(
    devices: Sequence[Offered],
    indices: Mapping[str, str],
    problems: Mapping[str, str],
    holders: Mapping[str, str],
    lacks: Collection[str],
) -> None:
    slices = offered.slices([device for device in devices if device.uuid not in lacks], {})
    well = [device for device in devices if device.uuid not in problems]
    held_count = sum(device.uuid in holders for device in well)
    clause = f"; {held_count} of these held" * bool(held_count)
    show.say(f"{OWN_DRIVER}: {len(well)} of {len(devices)} can be given out, in {len(slices)} ResourceSlices{clause}")
    rows = []
    for device in devices:
        product, profile = (device.body["attributes"][key]["string"] for key in ("productName", "profile"))
        cells = (texts.get(device.uuid, "") for texts in (holders, problems))
        rows.append([device.name, indices.get(device.uuid, ""), product, profile, *cells])
    show.table(COLUMNS, rows)
    show.say()


def _read_record() -> Record | None:
    """Return the record in this boot, as far as this user may read it."""
    file = AllocationsFile()
    try:
        record = file.read()
    except (GpushimError, OSError):
        return None
    return file.current(record) if record else None


def _find_holders(record: Record | None) -> dict[str, str]:
    """Return who has devices, by UUID."""
    if record is None:
        return {}
    holders = {allocation["device"]: "device plugin" for _, _, allocation in transitions.list_allocations(record)}
    for claim in record["claims"].values():
        is_ours = claim["driver"] == OWN_DRIVER
        name = f"claim {claim['namespace']}/{claim['name']}" if is_ours else transitions.describe(claim)
        for device in transitions.list_held(claim):
            former = holders.get(device["uuid"])
            holders[device["uuid"]] = f"{former}, {name}" if former else name
    return holders
