"""What would be offered to claims and why, in lines for people (`gpushim-dra-driver --check`).

It is what the driver would publish, by the same functions. Changes nothing but a snapshot that is out of date, as a
create would, and asks no API server. Of health it knows what who watches it has written last.
"""

from __future__ import annotations

import asyncio
import os
from itertools import chain
from typing import TYPE_CHECKING

from gpuplugin.dra import node_state, offered, partitions, spec
from gpuplugin.dra.cutting import OnDemand, find_gpus
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpuplugin.dra.cutting import Published
    from gpuplugin.dra.offered import Offered
    from gpuplugin.record.record_form import Record
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

COLUMNS = ("DEVICE", "INDEX", "PRODUCT", "PROFILE", "HELD BY", "CANNOT BE GIVEN OUT, BECAUSE")
ATTRIBUTES = ("productName", "profile", "memoryLimit")
FOLDERS = ("plugins_registry", "plugins", "pod-resources")  # of kubelet's, in each of which something is looked for
UNASKED = (
    "whether another driver has this one's name is not known: this Python has no grpcio, and no gpushim-dra-driver "
    "answers"
)
GIVEN = "a container has it by a device plugin"  # or its GPU, whatever the record says of whose container


def tell(settings: Settings, find_rival: Callable[[str], str | None]) -> None:
    """Print what the driver would publish.

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
    record = AllocationsFile().read_known()
    published = _find_published(snapshot, settings, record)
    problems, notes = _problems(published, settings, snapshot, record)
    _note([*node_state.excluded(settings, snapshot), *notes])
    if not published.devices:
        show.say("nothing is offered: this host has no GPU to give out to claims")
    indices = {uuid: unit.index for uuid, unit in resources.units(snapshot).items()}
    _list(published, indices, problems, _find_holders(record))
    show.say(summarize(AllocationsFile()))
    if path := find_rival(kubelet_dir):
        raise GpushimError(spec.RIVAL.format(path), FAILED)
    _note([UNASKED] * (path is None))
    if published.sentence:
        raise GpushimError(published.sentence, FAILED)
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


def _find_published(snapshot: Snapshot, settings: Settings, record: Record | None) -> Published:
    """Return what the driver would publish."""
    on_demand = OnDemand(lambda: snapshot, dict)
    try:
        asyncio.run(on_demand.learn(snapshot, settings.values))
    except GpushimError as error:
        _note([f"what is cut on demand is not known: {error}"])
    _note(
        f"GPU {index} of on-demand is not in MIG mode, so it is given out whole; while nothing has it open: "
        f"nvidia-smi -i {uuid} -mig 1"
        for index, uuid in find_gpus(snapshot, settings.values["on-demand"], mode=False).items()
    )
    return on_demand.publish(snapshot, settings, transitions.list_made_names(record))


def _problems(
    published: Published, settings: Settings, snapshot: Snapshot, record: Record | None
) -> tuple[dict[str, str], list[str]]:
    """Return why devices cannot be given to claims, by name; and notes of what is unhealthy beside."""
    reasons, doubt = node_state.reasons(settings, snapshot)
    taints, sentences = node_state.tainted(settings, snapshot, reasons, record)
    bodies = chain.from_iterable(partitions.slices(published.devices, [], taints))
    tainted = {
        body["name"] for body in bodies if any(taint["effect"] != offered.NONE for taint in body.get("taints", ()))
    }
    pods, problems, mild_notes = node_state.describe_pods(record), dict[str, str](), dict[str, str]()
    for device in published.devices:
        uuid = partitions.find_unit(device)
        if device.uuid in published.lacks:
            problems[device.name] = "the CDI spec does not have it"
        elif device.name in tainted:
            problems[device.name] = "; ".join(row[uuid] for row in (sentences, pods) if uuid in row) or GIVEN
        elif uuid in taints:
            mild_notes[uuid] = f"{uuid} can be given out, as taint-effect is {offered.NONE}: {sentences[uuid]}"
    return problems, [*filter(None, [doubt]), *mild_notes.values()]


def _list(
    published: Published, indices: Mapping[str, str], problems: Mapping[str, str], holders: Mapping[str, str]
) -> None:
    devices = published.devices
    present = [device for device in devices if device.uuid not in published.lacks]
    slices = partitions.slices(present, published.counters, {})
    by_name = {device.name: holders.get(device.uuid) or holders.get(device.name, "") for device in devices}
    well = [device for device in devices if device.name not in problems]
    held_count = sum(bool(by_name[device.name]) for device in well)
    clause = f"; {held_count} of these held" * bool(held_count)
    show.say(f"{OWN_DRIVER}: {len(well)} of {len(devices)} can be given out, in {len(slices)} ResourceSlices{clause}")
    rows = []
    for group in _group(devices):
        device, name = group[0], group[0].name
        if partitions.is_partition(device):
            name = f"{name.rpartition('-')[0]}-*, placements: {len(group)}"
        product, profile, limit = (device.body["attributes"][key]["string"] for key in ATTRIBUTES)
        if device.body.get("allowMultipleAllocations"):
            profile += f", in parts (memoryLimit {limit})"
        index = indices.get(partitions.get_parent(device) if len(group) > 1 else partitions.find_unit(device), "")
        rows.append([name, index, product, profile, *(_merge(group, texts) for texts in (by_name, problems))])
    show.table(COLUMNS, rows)
    show.say()


def _group(devices: Sequence[Offered]) -> Iterable[list[Offered]]:
    """Return devices by row: all partitions of one profile of a GPU are in one."""
    groups: dict[str, list[Offered]] = {}
    for device in devices:
        key = device.name.rpartition("-")[0] if partitions.is_partition(device) else device.name
        groups.setdefault(key, []).append(device)
    return groups.values()


def _merge(group: Sequence[Offered], texts: Mapping[str, str]) -> str:
    """Return what is to be known of a row's devices; of some of several partitions with their first slices."""
    starts: dict[str, list[str]] = {}
    for device in group:
        if text := texts.get(device.name):
            starts.setdefault(text, []).append(device.name.rpartition("-")[2])
    return "; ".join(
        text + f" (at {', '.join(numbers)})" * (len(numbers) < len(group)) for text, numbers in starts.items()
    )


def _find_holders(record: Record | None) -> dict[str, str]:
    """Return who has devices, by UUID, and by the names that claims have them by."""
    if record is None:
        return {}
    holders = {allocation["device"]: "device plugin" for _, _, allocation in transitions.list_allocations(record)}
    for claim in record["claims"].values():
        is_ours = claim["driver"] == OWN_DRIVER
        name = f"claim {claim['namespace']}/{claim['name']}" if is_ours else transitions.describe(claim)
        for device in transitions.list_held(claim):
            share = device.get("share")
            holder = f"{name} ({share['memory']} of {share['of']} MiB)" if share else name
            former = holders.get(device["uuid"])
            holders[device["uuid"]] = f"{former}, {holder}" if former else holder
            holders.setdefault(device["device"], holder)  # of a partition that has another UUID since a boot
    return holders
