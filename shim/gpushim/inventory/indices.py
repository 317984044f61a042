"""Which index means which GPU: for a whole boot the one that it first meant, whatever NVML counts later.

NVML numbers what it lists at the moment: if a GPU drops out, those after it move up. So the first list that NVML has
given after a boot is kept, in a file of its own and, in case that is removed or damaged, in the snapshot. A GPU that
comes later gets a number that no other has had.
Out of scope: WSL2 and Tegra, where a container gets all GPUs or none; what a request by the index of a missing GPU
gets (selection.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpushim.ground import system
from gpushim.inventory import ensure
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushim.ground.model import Gpu, Known, Snapshot

NAME = "indices"  # in the state directory


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


def known(state: str) -> list[Known]:
    """Return the GPUs that have an index since this boot; none before NVML has listed them for the first time."""
    names = (NAME, ensure.SNAPSHOT) if trust.ours(state) else ()
    return next(filter(None, (_read(ensure.own(f"{state}/{name}")) for name in names)), [])


def save(state: str, snapshot: Snapshot) -> None:
    """Keep a snapshot's indices, if NVML told them and they are not what is kept; the caller holds the lock."""
    if snapshot["source"] != "nvml" or snapshot["platform"] != "native":
        return
    gpus = _rows([*snapshot["gpus"], *snapshot["absent"]])
    path = f"{state}/{NAME}"
    if gpus and gpus != _read(ensure.own(path)):
        found = {"boot": system.boot(), "gpus": gpus}
        replace(path, json.dumps(found, separators=(",", ":")).encode() + b"\n")


def _read(found: Any) -> list[Known]:
    """Read what `save` or a refresh has written; nothing if that is of another boot, not NVML's, or damaged."""
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
