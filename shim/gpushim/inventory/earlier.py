"""What a survey takes from earlier ones of this boot: the GPUs' indices, and GPUs whose calls to NVML hang.

An index means one GPU for a whole boot. NVML numbers the GPUs that it lists at the moment, so if one drops out, those
after it move up. Therefore NVML's first list after a boot is kept, in a file of its own and, in case that is removed
or damaged, in the snapshot. A GPU that appears later gets a number that no other has had.

The device plugin finds the GPUs whose calls hang, and writes STATE/device-plugin/hung again while they do
(hung_file.py): {"boot": boot id, "gpus": {UUID: seconds since boot}}. They are listed as in the last snapshot, as
long as the driver's binding is the same. Only root can have written either file.
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
    """The indices of a boot's GPUs, of which `gpus` have theirs already."""

    def __init__(self, gpus: Sequence[Known]) -> None:
        self._left = list(gpus)
        self._taken = {gpu["index"] for gpu in gpus}

    def settle(self, gpu: Gpu) -> None:
        """Set a GPU's index, and its UUID if only an earlier survey knew it.

        A GPU is recognised by its UUID, or by its PCI address while the UUID is unknown. A new one keeps NVML's
        number unless that is taken.
        """
        row = next((entry for entry in self._left if gpu["uuid"] and entry["uuid"] == gpu["uuid"]), None) or next(
            (entry for entry in self._left if entry["pci"] == gpu["pci"] and not (entry["uuid"] and gpu["uuid"])),
            None,
        )
        if row:
            self._left.remove(row)
            gpu["index"], gpu["uuid"] = row["index"], gpu["uuid"] or row["uuid"]
        elif gpu["index"] in self._taken:
            gpu["index"] = max(self._taken) + 1
        self._taken.add(gpu["index"])

    @property
    def absent(self) -> list[Known]:
        """GPUs that had an index and have not been settled again."""
        return sorted(self._left, key=lambda gpu: gpu["index"])


def settled(state: str) -> list[Known]:
    """Return the GPUs that have an index since this boot; none before NVML has first listed them."""
    names = (INDICES, ensure.SNAPSHOT) if trust.ours(state) else ()
    return next(filter(None, (_read_indices(ensure.own(f"{state}/{name}")) for name in names)), [])


def save_indices(state: str, snapshot: Snapshot) -> None:
    """Save a snapshot's indices if NVML gave them and they have changed; the caller holds the lock."""
    if snapshot["source"] != "nvml" or snapshot["platform"] != "native":
        return
    gpus = _rows([*snapshot["gpus"], *snapshot["absent"]])
    path = f"{state}/{INDICES}"
    if gpus and gpus != _read_indices(ensure.own(path)):
        indices = {"boot": system.boot(), "gpus": gpus}
        replace(path, json.dumps(indices, separators=(",", ":")).encode() + b"\n")


def _read_indices(data: Any) -> list[Known]:
    """Read the rows of the indices file or a snapshot; none if it is of another boot, not NVML's, or damaged."""
    try:
        if data.get("stamp", data)["boot"] != system.boot() or data.get("source", "nvml") != "nvml":
            return []
        rows = _rows([*data["gpus"], *data.get("absent", ())])
    except (AttributeError, KeyError, TypeError):
        return []
    numbers = {row["index"] for row in rows if type(row["index"]) is int and row["index"] >= 0}
    is_complete = all(isinstance(row["uuid"], str) and isinstance(row["pci"], str) and row["pci"] for row in rows)
    return rows if is_complete and len(numbers) == len(rows) else []


def _rows(gpus: Iterable[Any]) -> list[Known]:
    rows: list[Known] = [{"index": gpu["index"], "uuid": gpu["uuid"], "pci": gpu["pci"]} for gpu in gpus]
    return sorted(rows, key=lambda gpu: gpu["index"])


class Hung(TypedDict):
    """What the last snapshot has of a GPU whose calls hang, and that snapshot's facts."""

    gpu: Gpu
    mig: list[MigInstance]
    stamp: Stamp


class HungGpus:
    """The GPUs that a survey does not ask because their calls hang."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._uuids: set[str] | None = None  # None before the survey

    def read(self) -> list[Hung]:
        """Return the GPUs that hang as the survey begins."""
        self._uuids = {*hanging(self._state)}
        return _read_last(self._state, self._uuids)

    def added(self) -> GpushimError | None:
        """Return the refusal for a survey during which another GPU began to hang, which it may wait for."""
        new = sorted({*hanging(self._state)} - self._uuids) if self._uuids is not None else []
        if not new:
            return None
        sentence = f"a call of {quote(new[0])} hangs: list the GPUs again, which does without it"
        return GpushimError(sentence, INVENTORY)


def hanging(state: str) -> dict[str, float]:
    """Return when the calls of each hanging GPU last hung, by UUID; {} if the file cannot be trusted."""
    path = f"{state}/{HUNG}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)):
        return {}
    data: Any = ensure.own(path, HUNG_LIMIT)
    gpus, clock = data.get("gpus"), system.clock()
    if data.get("boot") != system.boot() or not isinstance(gpus, dict):
        return {}
    return {uuid: at for uuid, at in gpus.items() if isinstance(at, (int, float)) and 0 <= clock - at < GOOD}


def hung_now(state: str, proc: str, sys: str) -> list[Hung]:
    """Return the GPUs that a survey would not ask now."""
    gpus = HungGpus(state).read()
    return still(gpus, ensure.driver(proc, sys, False)) if gpus else []


def still(hung: Sequence[Hung], facts: DriverFacts) -> list[Hung]:
    """Return the GPUs whose driver binding is unchanged, each with its MIG instances if those are unchanged too."""
    gpus: list[Hung] = []
    for entry in hung:
        gpu, stamp = entry["gpu"], entry["stamp"]
        name = next((name for name in facts["gpus"] if procfs.pci_address(name) == gpu["pci"]), "")
        binding, key = facts["gpus"].get(name), f"gpu{gpu['minor']}"
        if binding is None or (binding, facts["module"]) != (stamp["gpus"].get(name), stamp["module"]):
            continue
        has_same_migs = facts["mig"].get(key) == stamp["mig"].get(key)
        gpus.append({**entry, "mig": entry["mig"] if has_same_migs else []})
    return gpus


def instead(hung: Sequence[Hung]) -> dict[str, Gpu]:
    """Return, by PCI address, what a listing has of such GPUs: their last state, and why none is given out."""
    return {entry["gpu"]["pci"]: _with_problem(entry["gpu"]) for entry in hung}


def _with_problem(gpu: Gpu) -> Gpu:
    problem = (
        f"GPU {gpu['index']} ({gpu['pci']}) {HANGS}; gpushim-device-plugin tries it again and again, and a reset may "
        "help"
    )
    return {**gpu, "peers": [], "drm": [], "links": [], "problem": problem}


def _read_last(state: str, uuids: set[str]) -> list[Hung]:
    data: Any = ensure.own(f"{state}/{ensure.SNAPSHOT}") if uuids and trust.ours(state) else {}
    try:
        if not save.understood(data) or data["stamp"]["boot"] != system.boot():
            return []
        last = save.completed(data)
        return [
            {"gpu": gpu, "mig": [mig for mig in last["mig"] if mig["gpu"] == gpu["index"]], "stamp": last["stamp"]}
            for gpu in last["gpus"]
            if gpu["uuid"] in uuids
        ]
    except (AttributeError, KeyError, TypeError):  # damaged
        return []
