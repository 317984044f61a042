"""What becomes of the book by what kubelet lists, and by what it has forgotten when it starts.

Pure. Out of scope: what is given out (by_device.py), who asks kubelet (kubelet_view.py), what follows (changes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.book import by_device
from gpuplugin.book.by_device import (
    ALLOCATED,
    CLAIM,
    DRIVER,
    ENDING,
    FORGOTTEN,
    FORMER,
    LISTED,
    PLUGIN,
    SURE,
    UNLISTED,
    noted_entry,
    stem,
    way_of_part,
)
from gpuplugin.book.checkpoints import by_uid
from gpuplugin.devices.changes import is_instance
from gpuplugin.settings import resources
from gpushim.containers.kubelet import is_static

A_POD = "pod "  # with which names of those begin that kubelet lists (podresources.py)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.book.checkpoints import Remembered
    from gpuplugin.book.page import Division, Entry, Gpu, Page
    from gpuplugin.devices.changes import Held, Units
    from gpuplugin.settings.resources import Device


def known(page: Page, units: Units, former: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Device]:
    """List what the host has, and the MIG instances that it does not have any more and somebody may.

    Args:
        page: the book.
        units: what the host has.
        former: MIG instances that claims have, which the book may lack: GPU and place, by UUID.
    """
    found = {
        uuid: resources.Device(uuid, uuid, "", units[gpu].gpu, problem=resources.GONE, place=place)
        for uuid, (gpu, place) in (former or {}).items()
        if gpu in units
    }
    found.update(units)
    for gpu, one in page["gpus"].items():
        for entry in one["entries"].values() if gpu in units else ():
            uuid, place = entry["uuid"], entry.get("place", "")
            if uuid not in units and (place or uuid in one["divisions"]):
                place = place or one["divisions"][uuid]["place"]
                found[uuid] = resources.Device(uuid, uuid, "", units[gpu].gpu, problem=resources.GONE, place=place)
    return found


def met(
    page: Page, kubelet: list[Any], remembered: Remembered | None, running: Collection[str] = frozenset()
) -> Page:
    """Return the book after a start of kubelet, which knows of what was given out as much as its checkpoint.

    One that has any of it, or its resource, which is not there again before a plugin registers that, was not lost:
    nobody has any more, or ever got, what is missing there.

    Args:
        page: the book.
        kubelet: as the page has it.
        remembered: what is in that checkpoint.
        running: uids of the pods of which a process is left.
    """
    found: Page = {**page, "kubelet": kubelet, "gpus": {}}
    uids, names = (remembered.uids, remembered.resources) if remembered else ({}, ())
    lost = not any(name in names or f"{name} {id_}" in uids for name, id_, _ in by_device.entries(page))
    for gpu, one in page["gpus"].items():
        entries = {**one["entries"]}
        for key, entry in one["entries"].items():
            if entry["giver"] == PLUGIN and key not in uids:
                if lost or entry["source"] == FORGOTTEN:
                    entries[key] = {**entry, "source": FORGOTTEN}
                elif (left := _of_process(entry, key, remembered, running)) is not None:
                    entries[key] = left
                else:
                    del entries[key]
            elif entry["source"] in SURE and entry["to"] and entry["giver"] == PLUGIN:  # else nobody has looked yet
                entries[key] = {**entry, "source": FORMER}
        found["gpus"][gpu] = {"divisions": one["divisions"], "entries": entries}
    return found


def listed(
    page: Page,
    held: Held,
    pods: Collection[str] | None,
    since: float,
    promised: Remembered | None,
    whole: bool,
    node: str = "",
    stale: bool = False,
    running: Collection[str] = frozenset(),
) -> Page:
    """Return the book after kubelet has said who has what.

    A pod keeps what it was given until it ends: kubelet takes nothing from it, but may forget it in a restart, does
    not list what an init container alone has, and lists static pods alone while it has started without an API server.
    All the while its checkpoint has it; where that was lost, nothing but a boot ends what a pod has that kubelet did
    not list before. A pod that is missing in a list of all has ended; but kubelet may be adding pods, one by one,
    for as long as a plugin lets it wait. So that counts where nobody has it write its checkpoint, which tells better.
    Whatever kubelet says, nothing ends while a process of the pod is left: that may hang in the kernel.

    Args:
        page: the book.
        held: who has what; without CLAIM of devices of plugins alone.
        pods: that are listed, with devices or without; None while kubelet may not know all of them.
        since: seconds since boot; what was given out before that is known to kubelet, if somebody has it.
        promised: what its checkpoint has.
        whole: no pod of the API server's is missing in `pods`.
        node: this node's name, by which static pods are known, none of which is missing ever.
        stale: nobody has kubelet write its checkpoint.
        running: uids of the pods of which a process is left, of those of `unlisted_uids`.
    """
    found: Page = {**page, "gpus": {}}
    started = page["kubelet"][1] if page["kubelet"] else 0.0
    for gpu, one in page["gpus"].items():
        entries: dict[str, Entry] = {}
        for key, entry in one["entries"].items():
            if entry["source"] == FORMER and promised and key in promised.uids and promised.written > started:
                entry = {**entry, "source": UNLISTED}  # it has written that since, so it has read that
            resource, _, name = key.partition(" ")
            if who := held.get(resource, {}).get(name, ""):
                entries[key] = _of_pod(entry, who, key, promised)
            elif pods is None or _recent(entry, since, promised) or (entry["giver"] != PLUGIN and CLAIM not in held):
                entries[key] = entry
            else:
                left = _missing(entry, key, pods, promised, whole, node, stale, started)
                if left := left or _of_process(entry, key, promised, running):
                    entries[key] = left
        found["gpus"][gpu] = {"divisions": one["divisions"], "entries": entries}
    return _without_former_pods(found, running)


def unlisted_uids(page: Page, held: Held, promised: Remembered | None = None) -> frozenset[str]:
    """List the uids of pods that have something which kubelet does not list; as for `listed`."""
    rows = (
        (f"{resource} {name}", one)
        for resource, name, one in by_device.entries(page)
        if name not in held.get(resource, {})
    )
    return frozenset(uid for key, one in rows for uid in _uids(one, key, promised))


def _uids(entry: Entry, key: str, promised: Remembered | None) -> frozenset[str]:
    uids = by_device.uids(entry)
    return uids or frozenset(filter(None, [promised.uids.get(key) if promised else ""]))


def _of_process(entry: Entry, key: str, promised: Remembered | None, running: Collection[str]) -> Entry | None:
    """Return an entry that kubelet has no word for any more while a process of its pod is left; None if none is."""
    left = _uids(entry, key, promised).intersection(running)
    if not left:
        return None
    return {**entry, "source": ENDING, "uid": min(left)} if entry["giver"] == PLUGIN else entry


def _missing(
    entry: Entry,
    key: str,
    pods: Collection[str],
    promised: Remembered | None,
    whole: bool,
    node: str,
    stale: bool,
    started: float,
) -> Entry | None:
    """Return what becomes of an entry that kubelet does not list, as `listed`; None if that has ended."""
    to, named = entry["to"], entry["to"].startswith(A_POD)
    there = promised is None or key in promised.uids
    if entry["source"] == ENDING:
        return None
    if to in pods and entry["source"] == FORMER:  # kubelet has forgotten it, or another pod has the name
        return {**entry, "source": FORGOTTEN if promised and promised.written > started else FORMER}
    if entry["source"] == FORGOTTEN and (promised is None or key not in promised.uids):
        # A boot alone ends what is known by uid: kubelet does not say so when that pod has ended.
        ended = whole or _is_static(entry, node) if named else not to and promised is not None
        return None if ended and to not in pods else entry
    if named and whole and (stale or not there):
        return None
    if entry["giver"] == PLUGIN and there:
        return {**entry, "to": to if named or promised is None else by_uid(promised.uids[key]), "source": UNLISTED}
    return None


def _is_static(entry: Entry, node: str) -> bool:
    """Say whether a named pod is of a file: kubelet makes its uid itself, without hyphens; else by its name."""
    return "-" not in entry["uid"] if entry.get("uid") else is_static(entry["to"], node)


def _of_pod(entry: Entry, who: str, key: str, promised: Remembered | None) -> Entry:
    """Return an entry of what kubelet lists, with the pod's uid as soon as the checkpoint has that."""
    found: Entry = {**entry, "to": who, "source": LISTED}
    if promised and key in promised.uids and promised.written > entry["time"]:
        found["uid"] = promised.uids[key]
    elif entry["to"] != who:
        found.pop("uid", None)
    return found


def _without_former_pods(page: Page, running: Collection[str]) -> Page:
    """Return the book without what pods had of which another has the name now: a StatefulSet's come again by it."""
    uids = {one["to"]: one["uid"] for *_, one in by_device.entries(page) if one["source"] == LISTED and "uid" in one}
    gpus: dict[str, Gpu] = {}
    for gpu, one in page["gpus"].items():
        left = {
            key: entry
            for key, entry in one["entries"].items()
            if entry["source"] != FORGOTTEN
            or entry.get("uid") in (None, uids.get(entry["to"], entry.get("uid")), *running)
        }
        gpus[gpu] = {**one, "entries": left}
    return {**page, "gpus": gpus}


def unlisted(page: Page) -> frozenset[str]:
    """List what kubelet does not list, as keys of entries: its checkpoint tells when that ends, and pods' uids."""
    found = (FORMER, UNLISTED, ALLOCATED)
    return frozenset(
        f"{resource} {name}"
        for resource, name, one in by_device.entries(page)
        if one["giver"] == PLUGIN and (one["source"] in found or (one["source"] == LISTED and "uid" not in one))
    )


def claims(
    page: Page,
    who: Mapping[str, str],
    homes: Mapping[str, str],
    since: float | None,
    running: Collection[str] = frozenset(),
    places: Mapping[str, str] | None = None,
) -> Page:
    """Return the book with the claims of which somebody tells, and of others those that are new.

    Args:
        page: the book.
        who: claims by UUID of what they have.
        homes: UUIDs of the GPUs that have them, by UUID of all GPUs and MIG instances.
        since: seconds since boot; what a claim got before that and is not in `who` is free. None: nothing is.
        running: as for `listed`.
        places: of MIG instances, by UUID, as for `by_device.claim`.
    """
    found: Page = {**page, "gpus": {}}
    for gpu, one in page["gpus"].items():
        entries = {
            key: row
            for key, row in one["entries"].items()
            if row["giver"] == PLUGIN
            or row["uuid"] in who
            or since is None
            or row["time"] > since
            or by_device.uids(row).intersection(running)
        }
        found["gpus"][gpu] = {**one, "entries": entries}
    for uuid, to in who.items():
        if uuid in homes:
            home = found["gpus"].setdefault(homes[uuid], {"divisions": {}, "entries": {}})
            there = home["entries"].get(f"{CLAIM} {uuid}")
            if not there or there["to"] != to:
                made = noted_entry(DRIVER, to, uuid, (CLAIM, ""), LISTED, 0.0)
                if places and uuid in places:
                    made["place"] = places[uuid]
                home["entries"][f"{CLAIM} {uuid}"] = made
    return found


def _recent(entry: Entry, since: float, promised: Remembered | None) -> bool:
    """Say whether something was given so late that kubelet may not list it yet; of others' claims it alone tells.

    Its checkpoint is written when a container has all that it asks for, which another plugin may delay.
    """
    if promised and (entry["giver"], entry["source"]) == (PLUGIN, ALLOCATED):
        since = min(since, promised.written)
    return entry["time"] > since and (entry["giver"] == PLUGIN or entry["source"] == ALLOCATED)


def adopted(page: Page, held: Held, units: Units, uids: Mapping[str, str]) -> Page:
    """Return the book with what kubelet has given, and nobody has noted: claims, and what was given before the book.

    Args:
        page: the book.
        held: who has what.
        units: as `known` lists them.
        uids: of pods, by what kubelet's checkpoint says that they have.
    """
    rows = [(f"{resource} {name}", who, LISTED) for resource, row in held.items() for name, who in row.items()]
    listed = {key for key, *_ in rows}
    rows += [(key, by_uid(uid), UNLISTED) for key, uid in uids.items() if key not in listed]
    gpus = {one.gpu: one.uuid for one in units.values() if not is_instance(one.uuid)}
    found: Page = {**page, "gpus": {gpu: {**one, "entries": {**one["entries"]}} for gpu, one in page["gpus"].items()}}
    for key, who, source in rows:
        resource, _, name = key.partition(" ")
        uuid, giver = stem(name), DRIVER if resource == CLAIM else PLUGIN
        gpu = found["gpus"].get(gpus.get(units[uuid].gpu, "") if uuid in units else "")
        one = gpu and _as_given(resource, name, gpu["divisions"].get(uuid))
        if gpu and one and key not in gpu["entries"]:
            gpu["entries"][key] = noted_entry(giver, who, uuid, one, source, 0.0)  # nobody knows since when
            if giver == DRIVER and units[uuid].place:
                gpu["entries"][key]["place"] = units[uuid].place
    return found


def _as_given(resource: str, name: str, division: Division | None) -> tuple[str, str] | None:
    """Name the way in which an id was given out; None if it is in no record."""
    if resource == CLAIM:
        return CLAIM, ""
    part = division["parts"].get(resource) if division else None
    return way_of_part(resource, part) if part and part["numbered"] == ("::" in name) else None


def lost(page: Page) -> dict[str, dict[str, str]]:
    """Return of what somebody has, and kubelet would give once more, why it is not given; by resource and id."""
    found: dict[str, dict[str, str]] = {}
    for resource, name, entry in by_device.entries(page):
        if entry["source"] in (FORGOTTEN, ENDING):
            found.setdefault(resource, {})[name] = by_device.withheld(entry)
    return found


def doubtful(page: Page) -> bool:
    """Say whether something is noted of which kubelet alone can say when it ends."""
    return any(
        one["source"] in (FORMER, FORGOTTEN, ENDING) or one["giver"] != PLUGIN for *_, one in by_device.entries(page)
    )
