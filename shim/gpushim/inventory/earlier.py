"""What a look at the host takes over from earlier ones of this boot: indices, and GPUs that are not asked again.

An index means for a whole boot the GPU that it first meant. NVML numbers what it lists at the moment: if a GPU drops
out, those after it move up. So the first list that NVML has given after a boot is kept, in a file of its own and, in
case that is removed or damaged, in the snapshot. A GPU that comes later gets a number that no other has had.

GPUs whose calls to NVML hang, the device plugin has found: STATE/device-plugin/hung says {"boot": boot id, "gpus":
{UUID: seconds since boot}}; the plugin writes it again as long as a GPU hangs (its hung_file.py). What the last
snapshot had of such a GPU holds on while the driver's binding to it is the same. Only root can have written either.

Out of scope: WSL2 and Tegra, where a container gets all GPUs or none; what a request by the index of a missing GPU
gets (selection.py); NVML that hangs for all, as in nvmlInit (failure.py).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypedDict

from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError, quote
from gpushim.inventory import ensure, procfs, save
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushim.ground.model import DriverFacts, Gpu, Known, MigInstance, Snapshot, Stamp

INDICES = "indices"  # in the state directory
HUNG = "device-plugin/hung"
HUNG_LIMIT = 1 << 16  # bytes
GOOD = 180.0  # seconds that an entry counts; the plugin tries such a GPU again every 15 to 80

FAILS, HANGS = "does not answer NVML", "is not asked, for calls of it hang"  # what a snapshot says of such GPUs


class Indices:
    """The indices of a boot's GPUs.

    Args:
        known: those that are settled.
    """

    def __init__(self, known: Sequence[Known]) -> None:
        self._left = list(known)
        self._taken = {one["index"] for one in known}

    def settle(self, gpu: Gpu) -> None:
        """Give a GPU its index, and its UUID if only an earlier look knew that.

        It is told by its UUID; by its PCI address while that is unknown. A new GPU keeps the number that it comes
        with, unless that is another's.
        """
        same = next((one for one in self._left if gpu["uuid"] and one["uuid"] == gpu["uuid"]), None) or next(
            (one for one in self._left if one["pci"] == gpu["pci"] and not (one["uuid"] and gpu["uuid"])), None
        )
        if same:
            self._left.remove(same)
            gpu["index"], gpu["uuid"] = same["index"], gpu["uuid"] or same["uuid"]
        elif gpu["index"] in self._taken:
            gpu["index"] = max(self._taken) + 1
        self._taken.add(gpu["index"])

    @property
    def absent(self) -> list[Known]:
        """Those that have not been settled."""
        return sorted(self._left, key=lambda one: one["index"])


def settled(state: str) -> list[Known]:
    """Return the GPUs that have an index since this boot; none before NVML has listed them for the first time."""
    names = (INDICES, ensure.SNAPSHOT) if trust.ours(state) else ()
    return next(filter(None, (_indices(ensure.own(f"{state}/{name}")) for name in names)), [])


def save_indices(state: str, snapshot: Snapshot) -> None:
    """Keep a snapshot's indices, if NVML told them and they are not what is kept; the caller holds the lock."""
    if snapshot["source"] != "nvml" or snapshot["platform"] != "native":
        return
    gpus = _rows([*snapshot["gpus"], *snapshot["absent"]])
    path = f"{state}/{INDICES}"
    if gpus and gpus != _indices(ensure.own(path)):
        found = {"boot": system.boot(), "gpus": gpus}
        replace(path, json.dumps(found, separators=(",", ":")).encode() + b"\n")


def _indices(found: Any) -> list[Known]:
    """Read what `save_indices` or a refresh wrote; nothing if that is of another boot, not NVML's, or damaged."""
    try:
        if found.get("stamp", found)["boot"] != system.boot() or found.get("source", "nvml") != "nvml":
            return []
        rows = _rows([*found["gpus"], *found.get("absent", ())])
    except (AttributeError, KeyError, TypeError):
        return []
    numbers = {one["index"] for one in rows if type(one["index"]) is int and one["index"] >= 0}
    whole = all(isinstance(one["uuid"], str) and isinstance(one["pci"], str) and one["pci"] for one in rows)
    return rows if whole and len(numbers) == len(rows) else []


def _rows(gpus: Iterable[Any]) -> list[Known]:
    rows: list[Known] = [{"index": one["index"], "uuid": one["uuid"], "pci": one["pci"]} for one in gpus]
    return sorted(rows, key=lambda one: one["index"])


class Hung(TypedDict):
    """What the last snapshot has of a GPU whose calls hang, and that snapshot's facts."""

    gpu: Gpu
    mig: list[MigInstance]
    then: Stamp


class Spared:
    """The GPUs that a look does without, and whether it waits for one that it should have done without."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._known: set[str] | None = None  # UUIDs; None before the look

    def gpus(self) -> list[Hung]:
        """Return them; the look begins now."""
        self._known = {*hanging(self._state)}
        return _last(self._state, self._known)

    def hopeless(self) -> GpushimError | None:
        """Return why the look is better begun again, or None."""
        new = sorted({*hanging(self._state)} - self._known) if self._known is not None else []
        if not new:
            return None
        sentence = f"a call of {quote(new[0])} hangs: list the GPUs again, which does without it"
        return GpushimError(sentence, INVENTORY)


def hanging(state: str) -> dict[str, float]:
    """Return the UUIDs of GPUs whose calls hang, and when they last did; nothing if the file cannot be trusted."""
    path = f"{state}/{HUNG}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)):
        return {}
    found: Any = ensure.own(path, HUNG_LIMIT)
    gpus, now = found.get("gpus"), system.clock()
    if found.get("boot") != system.boot() or not isinstance(gpus, dict):
        return {}
    return {uuid: at for uuid, at in gpus.items() if isinstance(at, (int, float)) and 0 <= now - at < GOOD}


def hung_now(state: str, proc: str, sys: str) -> list[Hung]:
    """Return those that whoever looks at the host now does without."""
    found = Spared(state).gpus()
    return still(found, ensure.driver(proc, sys, False)) if found else []


def still(hung: Sequence[Hung], facts: DriverFacts) -> list[Hung]:
    """Return those to which the driver is bound as it was, each with its MIG instances if these are the same."""
    found: list[Hung] = []
    for one in hung:
        gpu, then = one["gpu"], one["then"]
        name = next((name for name in facts["gpus"] if procfs.pci_address(name) == gpu["pci"]), "")
        binding, place = facts["gpus"].get(name), f"gpu{gpu['minor']}"
        if binding is None or (binding, facts["module"]) != (then["gpus"].get(name), then["module"]):
            continue
        same = facts["mig"].get(place) == then["mig"].get(place)
        found.append({**one, "mig": one["mig"] if same else []})
    return found


def instead(hung: Sequence[Hung]) -> dict[str, Gpu]:
    """Return what a listing has of such GPUs, by PCI address: as they were, with the reason why none is given out."""
    return {one["gpu"]["pci"]: _problem(one["gpu"]) for one in hung}


def _problem(gpu: Gpu) -> Gpu:
    why = (
        f"GPU {gpu['index']} ({gpu['pci']}) {HANGS}; gpushim-device-plugin tries it again and again, and a reset may "
        "help"
    )
    return {**gpu, "peers": [], "drm": [], "links": [], "problem": why}


def _last(state: str, uuids: set[str]) -> list[Hung]:
    """Return what the last snapshot of this boot has of GPUs; nothing if there is none."""
    found: Any = ensure.own(f"{state}/{ensure.SNAPSHOT}") if uuids and trust.ours(state) else {}
    try:
        if not save.understood(found) or found["stamp"]["boot"] != system.boot():
            return []
        last = save.completed(found)
        return [
            {"gpu": gpu, "mig": [mig for mig in last["mig"] if mig["gpu"] == gpu["index"]], "then": last["stamp"]}
            for gpu in last["gpus"]
            if gpu["uuid"] in uuids
        ]
    except (AttributeError, KeyError, TypeError):  # damaged
        return []
