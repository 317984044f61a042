"""GPUs whose calls to NVML hang, as the device plugin has found: a look at the host does without them.

STATE/device-plugin/hung says {"boot": boot id, "gpus": {UUID: seconds since boot}}; the plugin writes it again as
long as a GPU hangs (the plugin's hung_file.py). What the last snapshot had of such a GPU holds on while the driver's
binding to it is the same. Only root can have written either.
Out of scope: NVML that hangs for all, as in nvmlInit (deadline.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypedDict

from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError, quote
from gpushim.inventory import ensure, form, procfs, stamp
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushim.ground.model import DriverFacts, Gpu, MigInstance, Stamp

NAME = "device-plugin/hung"
LIMIT = 1 << 16  # bytes
GOOD = 180.0  # seconds that an entry counts; the plugin tries such a GPU again every 15 to 80

FAILS, HANGS = "does not answer NVML", "is not asked, for calls of it hang"  # what a snapshot says of such GPUs


class Hung(TypedDict):
    """What the last snapshot has of a GPU whose calls hang, and that snapshot's facts."""

    gpu: Gpu
    mig: list[MigInstance]
    then: Stamp


class Spared:
    """The GPUs that a look does without, and whether it waits for one that it should have done without.

    Args:
        state: gpushim's state directory.
    """

    def __init__(self, state: str) -> None:
        self._state = state
        self._known: set[str] | None = None  # UUIDs; None before the look

    def gpus(self) -> list[Hung]:
        """Return them; the look begins now."""
        self._known = {*known(self._state)}
        return _last(self._state, self._known)

    def hopeless(self) -> GpushimError | None:
        """Return why the look is better begun again, or None."""
        new = sorted({*known(self._state)} - self._known) if self._known is not None else []
        if not new:
            return None
        sentence = f"a call of {quote(new[0])} hangs: list the GPUs again, which does without it"
        return GpushimError(sentence, INVENTORY)


def known(state: str) -> dict[str, float]:
    """Return the UUIDs of GPUs whose calls hang, and when they last did; nothing if the file cannot be trusted."""
    path = f"{state}/{NAME}"
    if not trust.ours(state) or not trust.ours(os.path.dirname(path)):
        return {}
    try:
        found: Any = ensure.own(path) if os.lstat(path).st_size <= LIMIT else {}
    except OSError:  # there is none
        return {}
    gpus, now = found.get("gpus"), system.clock()
    if found.get("boot") != system.boot() or not isinstance(gpus, dict):
        return {}
    return {uuid: at for uuid, at in gpus.items() if isinstance(at, (int, float)) and 0 <= now - at < GOOD}


def now(state: str, proc: str, sys: str) -> list[Hung]:
    """Return those that whoever looks at the host now does without.

    Args:
        state: gpushim's state directory.
        proc: stamp.proc_dir.
        sys: modules.sys_dir.
    """
    found = Spared(state).gpus()
    return still(found, stamp.driver(proc, sys, False)) if found else []


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
        if not form.understood(found) or found["stamp"]["boot"] != system.boot():
            return []
        last = form.completed(found)
        return [
            {"gpu": gpu, "mig": [mig for mig in last["mig"] if mig["gpu"] == gpu["index"]], "then": last["stamp"]}
            for gpu in last["gpus"]
            if gpu["uuid"] in uuids
        ]
    except (AttributeError, KeyError, TypeError):  # damaged
        return []
