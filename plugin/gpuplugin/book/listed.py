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
from gpuplugin.devices.changes import is_instance
from gpuplugin.settings import resources

PODS, ANY = 16, "one of many pods"  # names of pods that are noted, most; and what is noted instead

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.book.page import Division, Entry, Page
    from gpuplugin.devices.changes import Held, Units
    from gpuplugin.settings.resources import Device


def known(page: Page, units: Units) -> dict[str, Device]:
    """List what the host has, and the MIG instances that it does not have any more and somebody may.

    Args:
        page: the book.
        units: what the host has.
    """
    found = {**units}
    for gpu, one in page["gpus"].items():
        for uuid in {entry["uuid"] for entry in one["entries"].values()} - units.keys() if gpu in units else ():
            if uuid in one["divisions"]:
                index, place = units[gpu].gpu, one["divisions"][uuid]["place"]
                found[uuid] = resources.Device(uuid, uuid, "", index, problem=resources.GONE, place=place)
    return found


def met(page: Page, kubelet: list[Any], remembered: Collection[str]) -> Page:
    """Return the book after a start of kubelet, which knows of what was given out as much as its checkpoint.

    Args:
        page: the book.
        kubelet: as the page has it.
        remembered: resources and ids in that checkpoint, as keys of entries.
    """
    found: Page = {**page, "kubelet": kubelet, "gpus": {}}
    for gpu, one in page["gpus"].items():
        entries = {**one["entries"]}
        for key, entry in one["entries"].items():
            if entry["giver"] == PLUGIN and key not in remembered:
                entries[key] = {**entry, "source": FORGOTTEN}
            elif entry["source"] in SURE and entry["to"] and entry["giver"] == PLUGIN:  # else nobody has looked yet
                entries[key] = {**entry, "source": FORMER}
        found["gpus"][gpu] = {"divisions": one["divisions"], "entries": entries}
    return found


def listed(
    page: Page,
    held: Held,
    pods: Collection[str] | None,
    since: float,
    promised: Collection[str] | None = (),
    before: Collection[str] = (),
) -> Page:
    """Return the book after kubelet has said who has what.

    A pod keeps what it was given until it ends: kubelet takes nothing from it, but may forget it in a restart. So an
    entry from before that ends only when its pod is listed no more. What an init container alone has, kubelet does
    not list: see `_unlisted`.

    Args:
        page: the book.
        held: who has what; without CLAIM of devices of plugins alone.
        pods: all that are listed, with devices or without; None while kubelet may not know all of them.
        since: seconds since boot; what was given out before that and no pod has is free.
        promised: resources and ids in kubelet's checkpoint, as keys of entries; None if it cannot be seen here.
        before: the pods that were listed the time before.
    """
    found: Page = {**page, "gpus": {}}
    without = {*(pods or ())} - {who for row in held.values() for who in row.values()}
    for gpu, one in page["gpus"].items():
        entries: dict[str, Entry] = {}
        for key, entry in one["entries"].items():
            resource, _, name = key.partition(" ")
            who = held.get(resource, {}).get(name, "")
            if who:
                entries[key] = {**entry, "to": who, "source": LISTED}
            elif pods is not None and entry["giver"] == PLUGIN and entry["source"] in (ALLOCATED, UNLISTED):
                there = None if promised is None else key in promised
                still = _unlisted(entry, without, before, _recent(entry, since), there)
                entries.update({key: still} if still else {})
            elif pods is None or _recent(entry, since) or (entry["giver"] != PLUGIN and CLAIM not in held):
                entries[key] = entry
            elif entry["source"] in (FORMER, FORGOTTEN) and _of(entry, pods):
                entries[key] = {**entry, "source": FORGOTTEN}
        found["gpus"][gpu] = {"divisions": one["divisions"], "entries": entries}
    return found


def _unlisted(
    entry: Entry, without: set[str], before: Collection[str], recent: bool, promised: bool | None
) -> Entry | None:
    """Return an entry that kubelet does not list while somebody may have it; None if nobody does.

    kubelet's checkpoint has what an init container got, until it knows of the pod's end, which may be late. So it
    also ends with the pods that came with it, for one of them has it.

    Args:
        entry: of the device plugin's.
        without: pods that are listed without a device.
        before: pods that were listed the time before.
        recent: kubelet may not have it yet.
        promised: kubelet's checkpoint has it; None: it cannot be seen here, and the device plugin finds out.
    """
    if promised is None:
        return entry if recent or _of(entry, without) or (without and not entry["to"]) else None
    came = without - {*before} if recent or not entry["to"] else set()
    may = came | _of(entry, without)
    if recent or (promised and may):
        to = ", ".join(sorted(may)) if len(may) <= PODS else ANY
        return {**entry, "to": to, "source": ALLOCATED if recent else UNLISTED}
    return None


def _of(entry: Entry, pods: Collection[str]) -> set[str]:
    """Return those of some pods that may have what an entry is about."""
    return {*pods} if entry["to"] == ANY else {*pods} & {*entry["to"].split(", ")}


def claims(page: Page, who: Mapping[str, str], homes: Mapping[str, str], since: float | None) -> Page:
    """Return the book with the claims of which somebody tells, and of others those that are new.

    Args:
        page: the book.
        who: claims by UUID of what they have.
        homes: UUIDs of the GPUs that have them, by UUID of all GPUs and MIG instances.
        since: seconds since boot; what a claim got before that and is not in `who` is free. None: nothing is.
    """
    found: Page = {**page, "gpus": {}}
    for gpu, one in page["gpus"].items():
        entries = {
            key: row
            for key, row in one["entries"].items()
            if row["giver"] == PLUGIN or row["uuid"] in who or since is None or row["time"] > since
        }
        found["gpus"][gpu] = {**one, "entries": entries}
    for uuid, to in who.items():
        if uuid in homes:
            home = found["gpus"].setdefault(homes[uuid], {"divisions": {}, "entries": {}})
            there = home["entries"].get(f"{CLAIM} {uuid}")
            if not there or there["to"] != to:
                home["entries"][f"{CLAIM} {uuid}"] = noted_entry(DRIVER, to, uuid, (CLAIM, ""), LISTED, 0.0)
    return found


def _recent(entry: Entry, since: float) -> bool:
    """Say whether something was given so late that kubelet may not list it yet; of others' claims it alone tells."""
    return entry["time"] > since and (entry["giver"] == PLUGIN or entry["source"] == ALLOCATED)


def adopted(page: Page, held: Held, units: Units) -> Page:
    """Return the book with what kubelet lists, and nobody has noted: claims, and what was given out before the book.

    Args:
        page: the book.
        held: who has what.
        units: as `known` lists them.
    """
    gpus = {one.gpu: one.uuid for one in units.values() if not is_instance(one.uuid)}
    found: Page = {**page, "gpus": {gpu: {**one, "entries": {**one["entries"]}} for gpu, one in page["gpus"].items()}}
    for resource, row in held.items():
        giver = DRIVER if resource == CLAIM else PLUGIN
        for name, who in row.items():
            uuid, key = stem(name), f"{resource} {name}"
            gpu = found["gpus"].get(gpus.get(units[uuid].gpu, "") if uuid in units else "")
            one = gpu and _as_given(resource, name, gpu["divisions"].get(uuid))
            if gpu and one and key not in gpu["entries"]:
                gpu["entries"][key] = noted_entry(giver, who, uuid, one, LISTED, 0.0)  # nobody knows since when
    return found


def _as_given(resource: str, name: str, division: Division | None) -> tuple[str, str] | None:
    """Name the way in which an id was given out; None if it is in no record."""
    if resource == CLAIM:
        return CLAIM, ""
    part = division["parts"].get(resource) if division else None
    return way_of_part(resource, part) if part and part["numbered"] == ("::" in name) else None


def lost(page: Page) -> dict[str, dict[str, str]]:
    """List who has what kubelet has forgotten, by resource and id."""
    found: dict[str, dict[str, str]] = {}
    for resource, name, entry in by_device.entries(page):
        if entry["source"] == FORGOTTEN:
            found.setdefault(resource, {})[name] = entry["to"] or "a container"
    return found


def doubtful(page: Page) -> bool:
    """Say whether something is noted of which kubelet alone can say when it ends."""
    return any(one["source"] in (FORMER, FORGOTTEN) or one["giver"] != PLUGIN for *_, one in by_device.entries(page))
