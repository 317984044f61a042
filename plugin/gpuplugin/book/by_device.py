"""What the book has, as devices, and what becomes of it: by GPU and MIG instance, in plain values.

Pure. Out of scope: the file and its lock (book.py), whether a division may change (changes.py).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.book.page import share
from gpuplugin.devices import changes
from gpuplugin.devices.changes import UNNAMED, ending, forgotten, former, is_instance, overlap, way_of
from gpuplugin.settings import resources
from gpushim.ground.errors import REQUEST, GpushimError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuplugin.book.page import Division, Entry, Gifts, Page, Part
    from gpuplugin.devices.changes import Devices, Served, Settled, Units
    from gpuplugin.settings.resources import Device

PLUGIN, DRIVER = "device-plugin", "dra-driver"  # givers
CLAIM = changes.CLAIM
ALLOCATED, LISTED = "allocate", "pod-resources"  # sources of entries: given, and listed by kubelet since
SURE = (ALLOCATED, LISTED)
FORMER, FORGOTTEN = "pod-resources before kubelet's restart", "forgotten by kubelet"  # and of those listed before
UNLISTED = "kubelet's checkpoint"  # which kubelet does not list: pod-resources has no init containers
ENDING = "cgroup"  # of whose pod kubelet knows nothing any more, and a process is left
_WHY = {FORMER: former, FORGOTTEN: forgotten, ENDING: ending}


class Given(NamedTuple):
    """A device that somebody gets, and the way in which it is given out, as `changes.way` has it."""

    uuid: str
    resource: str
    id: str
    way: tuple[str, str]


def devices(page: Page, units: Units, ids: Iterable[tuple[str, str]] = ()) -> dict[str, dict[str, Device]]:
    """List what was given out last, by resource and id.

    Args:
        page: the book.
        units: what the host has.
        ids: resources and ids that somebody has; they may be more than were listed last.
    """
    found: dict[str, dict[str, Device]] = {}
    divisions = {uuid: one for gpu in page["gpus"].values() for uuid, one in gpu["divisions"].items()}
    for uuid, division in divisions.items():
        for resource, part in division["parts"].items() if uuid in units else ():
            row = resources.replicated([units[uuid]], part["count"], share(part), part["numbered"])
            found.setdefault(resource, {}).update((one.id, one) for one in row)
    alike = {(resource, stem(name)): one for resource, row in found.items() for name, one in row.items()}
    for resource, name in ids:
        one = alike.get((resource, stem(name)))
        if one and ("::" in name) == ("::" in one.id):
            found[resource].setdefault(name, replace(one, id=name))
    return found


def noted(page: Page, desired: Devices, served: Served, settled: Settled, units: Units, owner: int) -> Page:
    """Return the book after a decision: what does not wait is in its new division, the rest as it was.

    Args:
        page: the book.
        desired: as it was for the decision.
        served: as it was for the decision.
        settled: the decision.
        units: what the host has.
        owner: this instance, which owns what it gives out as it wants.
    """
    gpus = {one.gpu: one.uuid for one in units.values() if not is_instance(one.uuid)}
    before = {uuid: row for gpu in page["gpus"].values() for uuid, row in gpu["divisions"].items()}
    was = _parts({name: [*row.values()] for name, row in served.items()})
    divisions: dict[str, dict[str, Division]] = {gpus[one.gpu]: {} for row in desired.values() for one in row}
    for uuid in settled.occupied & was.keys():
        gpu = gpus[units[uuid].gpu]
        old: Division = {"parts": was[uuid], "owner": 0, "place": units[uuid].place}
        divisions.get(gpu, {})[uuid] = before.get(uuid, old)
    for uuid, parts in _parts(desired).items():
        if uuid not in settled.waits:
            if uuid in settled.occupied:
                _enlarge(parts, was.get(uuid, {}))
            new: Division = {"parts": parts, "owner": owner, "place": units[uuid].place}
            divisions[gpus[units[uuid].gpu]][uuid] = new
    found: Page = {**page, "gpus": dict(page["gpus"])}
    for gpu, row in divisions.items():
        ways = {uuid: _ways(one) for uuid, one in row.items()}
        entries = page["gpus"][gpu]["entries"] if gpu in page["gpus"] else {}
        live = {
            key: one
            for key, one in entries.items()
            if one["giver"] != PLUGIN or _way(one) in ways.get(one["uuid"], ())
        }
        found["gpus"][gpu] = {"divisions": row, "entries": live}
    if _divided(found) != _divided(page):
        found["turn"] += 1
    return found


def owners(page: Page) -> dict[str, int]:
    """Say by which instance each GPU or MIG instance was divided, by UUID."""
    return {uuid: one["owner"] for gpu in page["gpus"].values() for uuid, one in gpu["divisions"].items()}


def entries(page: Page) -> Iterator[tuple[str, str, Entry]]:
    """List who got what: resource, id and entry."""
    for gpu in page["gpus"].values():
        for key, one in gpu["entries"].items():
            resource, _, name = key.partition(" ")
            yield resource, name, one


def of_claims(page: Page) -> frozenset[tuple[str, str]]:
    """List what claims have: UUID and claim."""
    return frozenset((one["uuid"], one["to"]) for *_, one in entries(page) if one["giver"] != PLUGIN)


def noted_entry(giver: str, to: str, uuid: str, division: tuple[str, str], source: str, now: float) -> Entry:
    """Make an entry."""
    return {"giver": giver, "to": to, "uuid": uuid, "division": [*division], "source": source, "time": now}


def give(
    page: Page, given: Sequence[Given], giver: str, to: str, now: float, running: Collection[str] = frozenset()
) -> tuple[Page, Gifts]:
    """Return the book with what somebody gets, and that.

    Args:
        page: the book.
        given: what somebody gets.
        giver: the front that gives it.
        to: the container or claim, "" while it is not known.
        now: seconds since boot.
        running: uids of pods of which a process is left, of `former_uids`.

    Raises:
        GpushimError: it is in another division, or a pod that kubelet has forgotten has it.
    """
    homes = {uuid: gpu for gpu, one in page["gpus"].items() for uuid in one["divisions"]}
    for one in given:
        gpu = page["gpus"].get(homes.get(one.uuid, ""), {"divisions": {}, "entries": {}})
        there = _ways(gpu["divisions"][one.uuid]) if gpu["divisions"] else set()
        if one.way not in there:
            last = " and ".join(sorted(map(_named, there))) or "nothing"
            raise GpushimError(f"{one.uuid} is not given out as {_named(one.way)} now, but as {last}", REQUEST)
        same = gpu["entries"].get(f"{one.resource} {one.id}")
        if same and uids(same).intersection(running):
            same = {**same, "source": ENDING}
        if same and (why := withheld(same)):  # of what kubelet remembers it does not ask for more
            raise GpushimError(f"{one.uuid} cannot be given out: {why}", REQUEST)
        for entry in gpu["entries"].values():
            claimed = entry["giver"] == DRIVER and entry["uuid"] != one.uuid  # which is never a part of an instance
            place = gpu["divisions"][one.uuid]["place"] if claimed else ""
            if _excludes(entry, one) or _is_there(entry, gpu["divisions"], place):
                way = "" if entry["giver"] == DRIVER else f" as {_named(_way(entry))}"
                what = f"{_whose(entry)} has {entry['uuid']}{way}"
                raise GpushimError(f"{one.uuid} cannot be given out as {_named(one.way)}: {what}", REQUEST)
    new: dict[str, dict[str, Entry]] = {}
    for one in given:
        made = noted_entry(giver, to, one.uuid, one.way, ALLOCATED, now)
        new.setdefault(homes[one.uuid], {})[f"{one.resource} {one.id}"] = made
    gpus = dict(page["gpus"])
    for home, more in new.items():
        gpus[home] = {**gpus[home], "entries": {**gpus[home]["entries"], **more}}
    return {**page, "gpus": gpus}, new


def withheld(entry: Entry) -> str:
    """Return why what somebody has is not given out once more; "" if kubelet knows who has it."""
    why = _WHY.get(entry["source"])
    return why(_whose(entry)) if why else ""


def with_uids(page: Page, pods: Mapping[str, str]) -> Page:
    """Return the book with the pods that kubelet has for what it has of no pod yet, as for moments after Allocate.

    Args:
        page: the book.
        pods: uids by resource and id with a blank between them.
    """
    gpus: dict[str, Any] = {}
    for uuid, one in page["gpus"].items():
        rows = {
            key: {**row, "uid": pods[key]} for key, row in one["entries"].items() if key in pods and not uids(row)
        }
        gpus[uuid] = {**one, "entries": {**one["entries"], **rows}}
    return {**page, "gpus": gpus}


def former_uids(page: Page, keys: Collection[tuple[str, str]]) -> frozenset[str]:
    """List the uids of the pods that have, as the book knows it, what is to be given now: resources and ids."""
    return frozenset(uid for resource, name, one in entries(page) if (resource, name) in keys for uid in uids(one))


def uids(entry: Entry) -> frozenset[str]:
    """List the uids of the pods that have something, as far as they are known."""
    named = entry["to"][len(UNNAMED) :] if entry["to"].startswith(UNNAMED) else ""
    return frozenset(filter(None, (entry.get("uid"), named, *entry.get("pods", ()))))


def claim(
    page: Page,
    homes: Mapping[str, str],
    to: str,
    now: float,
    places: Mapping[str, str] | None = None,
    pods: Sequence[str] = (),
) -> Page:
    """Return the book with what a claim gets, whole, whatever it was given out as before.

    Args:
        page: the book.
        homes: UUIDs of the GPUs that have them, by UUID of the GPUs and MIG instances that it gets.
        to: the claim, as checkpoints.claimed names it.
        now: seconds since boot.
        places: of MIG instances, by UUID: one that was made in the place of another has its device nodes.
        pods: uids of those that have the claim.

    Raises:
        GpushimError: somebody else has one of them, all of it or a part.
    """
    places = places or {}
    found: Page = {**page, "gpus": dict(page["gpus"])}
    for uuid, home in homes.items():
        gpu = found["gpus"].get(home, {"divisions": {}, "entries": {}})
        for entry in gpu["entries"].values():
            same = overlap(entry["uuid"], uuid) or _is_there(entry, gpu["divisions"], places.get(uuid, ""))
            if same and (entry["giver"], entry["to"]) != (DRIVER, to):
                of = "it" if entry["uuid"] == uuid else entry["uuid"]
                raise GpushimError(f"{uuid} cannot be given to {to}: {_whose(entry)} has {of}", REQUEST)
        made = noted_entry(DRIVER, to, uuid, (CLAIM, ""), ALLOCATED, now)
        if uuid in places:
            made["place"] = places[uuid]
        if pods:
            made["pods"] = [*pods]
        found["gpus"][home] = {**gpu, "entries": {**gpu["entries"], f"{CLAIM} {uuid}": made}}
    return found


def with_pods(page: Page, uuids: Collection[str], to: str, pods: Sequence[str]) -> Page:
    """Return the book with the pods that have a claim; as for `unclaimed`."""
    keys = {f"{CLAIM} {uuid}" for uuid in uuids}
    gpus: dict[str, Any] = {}
    for uuid, one in page["gpus"].items():
        mine = {
            key: {**row, "pods": [*pods]} for key, row in one["entries"].items() if key in keys and row["to"] == to
        }
        gpus[uuid] = {**one, "entries": {**one["entries"], **mine}}
    return {**page, "gpus": gpus}


def unclaimed(page: Page, uuids: Collection[str], to: str) -> Page:
    """Return the book without what a claim had.

    Args:
        page: the book.
        uuids: of the GPUs and MIG instances that it had.
        to: the claim, as checkpoints.claimed names it.
    """
    keys = {f"{CLAIM} {uuid}" for uuid in uuids}
    gpus: dict[str, Any] = {}
    for uuid, one in page["gpus"].items():
        left = {key: row for key, row in one["entries"].items() if key not in keys or row["to"] != to}
        gpus[uuid] = {**one, "entries": left}
    return {**page, "gpus": gpus}


def _is_there(entry: Entry, divisions: Mapping[str, Division], place: str) -> bool:
    """Say whether a MIG instance that somebody has is, or was, in the GPU instance of a place."""
    had = entry.get("place") or (divisions[entry["uuid"]]["place"] if entry["uuid"] in divisions else "")
    return bool(place) and had.partition("/")[0] == place.partition("/")[0]


def _excludes(entry: Entry, one: Given) -> bool:
    same = entry["uuid"] == one.uuid and _way(entry) == one.way
    return overlap(entry["uuid"], one.uuid) and not same


def _whose(entry: Entry) -> str:
    return entry["to"] or f"a container, by {entry['giver']}"


def _way(entry: Entry) -> tuple[str, str]:
    kind, name = entry["division"]
    return kind, name


def _named(one: tuple[str, str]) -> str:
    kind, name = one
    return f"{name} ({kind})" if kind else name


def stem(name: str) -> str:
    """Return the UUID in a device's id."""
    return name.partition("::")[0]


def _ways(division: Division) -> set[tuple[str, str]]:
    return {way_of_part(resource, part) for resource, part in division["parts"].items()}


def way_of_part(resource: str, part: Part) -> tuple[str, str]:
    """Name the way in which a part is given out, as `changes.way`."""
    shared = part["share"] or {}
    return way_of(resource, part["numbered"], shared.get("kind", ""), shared.get("group", ""))


def _parts(desired: Devices) -> dict[str, dict[str, Part]]:
    found: dict[str, dict[str, Part]] = {}
    for resource, row in desired.items():
        for one in row:
            parts = found.setdefault(one.uuid, {})
            if resource not in parts:
                by = asdict(one.share) if one.share else None
                parts[resource] = {"count": 0, "numbered": "::" in one.id, "share": by}
            number = one.id.partition("::")[2]
            parts[resource]["count"] = max(parts[resource]["count"], int(number) + 1 if number.isdecimal() else 1)
    return found


def _enlarge(parts: dict[str, Part], was: Mapping[str, Part]) -> None:
    """Remember the ids that there were more of, while somebody may have them."""
    for resource, part in parts.items():
        if resource in was and was[resource]["numbered"]:
            part["count"] = max(part["count"], was[resource]["count"])


def _divided(page: Page) -> Any:
    return {gpu: {uuid: row["parts"] for uuid, row in one["divisions"].items()} for gpu, one in page["gpus"].items()}
