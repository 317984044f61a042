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

A_POD = "pod "  # with which names of those begin that kubelet lists (podresources.py)

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
    promised: Mapping[str, str] | None,
    whole: bool,
) -> Page:
    """Return the book after kubelet has said who has what.

    A pod keeps what it was given until it ends: kubelet takes nothing from it, but may forget it in a restart, does
    not list what an init container alone has, and lists static pods alone while it has started without an API server.
    All the while its checkpoint has it.

    Args:
        page: the book.
        held: who has what; without CLAIM of devices of plugins alone.
        pods: that are listed, with devices or without; None while kubelet may not know all of them.
        since: seconds since boot; what was given out before that is in kubelet's checkpoint, if somebody has it.
        promised: as `checkpoints.remembered` returns it.
        whole: no pod of the API server's is missing in `pods`.
    """
    found: Page = {**page, "gpus": {}}
    for gpu, one in page["gpus"].items():
        entries: dict[str, Entry] = {}
        for key, entry in one["entries"].items():
            resource, _, name = key.partition(" ")
            who = held.get(resource, {}).get(name, "")
            if who:
                entries[key] = {**entry, "to": who, "source": LISTED}
            elif pods is None or _recent(entry, since) or (entry["giver"] != PLUGIN and CLAIM not in held):
                entries[key] = entry
            elif entry["source"] in (FORMER, FORGOTTEN) and entry["to"] in pods:
                entries[key] = {**entry, "source": FORGOTTEN}
            elif entry["giver"] == PLUGIN and (promised is None or key in promised):
                known = entry["to"].startswith(A_POD)  # kubelet has listed it once
                if not (known and whole and entry["to"] not in pods):
                    to = entry["to"] if known or promised is None else promised[key]
                    entries[key] = {**entry, "to": to, "source": UNLISTED}
        found["gpus"][gpu] = {"divisions": one["divisions"], "entries": entries}
    return found


def unlisted(page: Page) -> bool:
    """Say whether something is noted that kubelet does not list, so that its checkpoint tells when it ends."""
    return any(one["source"] in (FORMER, UNLISTED) for *_, one in by_device.entries(page))


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


def adopted(page: Page, held: Held, units: Units, promised: Mapping[str, str]) -> Page:
    """Return the book with what kubelet has given, and nobody has noted: claims, and what was given before the book.

    Args:
        page: the book.
        held: who has what.
        units: as `known` lists them.
        promised: as `checkpoints.remembered` returns it.
    """
    rows = [(f"{resource} {name}", who, LISTED) for resource, row in held.items() for name, who in row.items()]
    listed = {key for key, *_ in rows}
    rows += [(key, who, UNLISTED) for key, who in promised.items() if key not in listed]
    gpus = {one.gpu: one.uuid for one in units.values() if not is_instance(one.uuid)}
    found: Page = {**page, "gpus": {gpu: {**one, "entries": {**one["entries"]}} for gpu, one in page["gpus"].items()}}
    for key, who, source in rows:
        resource, _, name = key.partition(" ")
        uuid, giver = stem(name), DRIVER if resource == CLAIM else PLUGIN
        gpu = found["gpus"].get(gpus.get(units[uuid].gpu, "") if uuid in units else "")
        one = gpu and _as_given(resource, name, gpu["divisions"].get(uuid))
        if gpu and one and key not in gpu["entries"]:
            gpu["entries"][key] = noted_entry(giver, who, uuid, one, source, 0.0)  # nobody knows since when
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
