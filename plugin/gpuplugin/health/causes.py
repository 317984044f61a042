"""The causes of each GPU's troubles, until when it was listened to, and the file that keeps both.

The file is for the same start of the host only: it says which. All times are seconds since then, suspends included
(system.clock), which nobody sets.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from gpuplugin.health.nvml_lines import MOMENT, Since
from gpuplugin.settings import xids
from gpuplugin.settings.json_types import checker
from gpushim.ground.errors import quote
from gpushim.ground.logs import logger
from gpushim.inventory import ensure
from gpushim.inventory.procfs import sysfs_name
from gpushim.paths import trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Snapshot

VERSION = 2
GPUS = 256  # times CAUSES causes of less than 400 bytes are 3.3 MB, of the 16 MiB that are read
CAUSES = 32  # of a GPU
OTHERS = 10  # of them, that are no XIDs, and FURTHER
FURTHER = "xid further"  # the cause that stands for all XIDs that a GPU has no room for
# Failed polls in a row that count. "Lost" is never a blip: NVML_ERROR_GPU_IS_LOST is the driver's last word. A call
# may fail once while the driver is busy; two polls are 6 s, of the 10 s in which a lost GPU is to be marked.
ROW = {"gone": 2, "error": 2}
FINE = (0, 5)  # recovery actions: none, and the one that does not concern the GPU itself (reason.ACTIONS)
OVER = 64  # events of a GPU of which it is known that they are over, most
FORGET = 86400.0  # seconds that a GPU's reasons are kept while the host does not have it
LONGEST = 128  # characters of a UUID, or of the name of a child
MODE = 0o600
KINDS = (
    "xid",
    "ecc",
    "recovery",
    "lost",
    "gone",
    "rows",
    "error",
    "fabric",
    "unwatched",
)  # see Reason
EVENTS = ("xid", "ecc")  # of them, that are heard once and never again
COUNTS = ("ecc", "pages")  # of a GPU, which grow with uncorrectable memory errors
DRIFT = 1e-4  # of the kernel's log, whose clock nothing corrects, against the clock that NTP keeps


@dataclass
class Cause:
    """Something that keeps a GPU or a MIG instance from being handed out.

    Attributes:
        kind: one of KINDS.
        since: when it was first seen.
        last: when it was last seen.
        number: the XID, or the recovery action.
        gi: the GPU instance that alone it concerns; None: the whole GPU.
        ci: the compute instance that alone it concerns; None: the whole GPU instance.
        ends: one of xids.TIME, ACTION, AGAIN; "": when a poll does not see it.
        seen: how many polls in a row saw it.
        told: whether the driver has asked for a recovery action since.
        why: words of NVML or of the plugin, quoted.
    """

    kind: str
    since: float
    last: float
    number: int = 0
    gi: Optional[int] = None
    ci: Optional[int] = None
    ends: str = ""
    seen: int = 1
    told: bool = False
    why: str = ""

    @property
    def counts(self) -> bool:
        """Return whether it was seen often enough."""
        return self.seen >= ROW.get(self.kind, 1)

    def over(self, action: int | None, moment: float) -> bool:
        """Return whether the trouble that an event caused has ended, at a poll that the GPU has answered well.

        `action` is the driver's recovery action then; None: not told.
        """
        if self.ends == xids.TIME:
            return moment - self.last >= xids.TRANSIENT
        healed = action in FINE and moment - self.last >= xids.SETTLE
        return healed and (self.told or self.ends == xids.ACTION)


@dataclass
class GpuRecord:
    """A GPU and its causes.

    Attributes:
        causes: by a name that the same cause has when it comes again.
        binding: what changes when the driver is loaded or bound to the GPU again.
        gone: since when the host does not have it; None while it has.
        heard: until when its events were listened to; 0: never.
        bound: when the driver was found to be another one; no event from before counts.
        ecc: uncorrectable memory errors since the driver was loaded, as they were told last; None: not told.
        pages: of memory, that were retired for such an error, likewise; of GPUs that replace no rows.
    """

    causes: dict[str, Cause] = field(default_factory=dict)
    binding: list[Any] = field(default_factory=list)
    gone: Optional[float] = None
    heard: float = 0.0
    bound: float = 0.0
    ecc: Optional[int] = None
    pages: Optional[int] = None

    def bind(self, module: str | None, inode: int | None) -> bool:
        """Set the driver's version and the binding's inode number, and return whether the driver is another one now.

        There is no inode while the GPU is bound to no driver.
        """
        old = self.binding or [None, None]
        self.binding = [module or old[0], inode if inode is not None else old[1]]
        return any(before is not None and before != after for before, after in zip(old, self.binding))


@dataclass
class State:
    """The state of all GPUs.

    Attributes:
        boot: the host's boot id.
        unwatched: causes that concern all GPUs, by the child that does not watch them.
    """

    boot: str
    gpus: dict[str, GpuRecord] = field(default_factory=dict)
    unwatched: dict[str, Cause] = field(default_factory=dict)

    def find(self, uuid: Any, present: set[str]) -> GpuRecord | None:
        """Find or add a GPU; return None if that is no UUID, or there are too many.

        GPUs that are not among `present`, those that the host has, make room.
        """
        if not isinstance(uuid, str) or not 0 < len(uuid) <= LONGEST:
            return None
        if uuid not in self.gpus and len(self.gpus) >= GPUS:
            absent = next((known_uuid for known_uuid in self.gpus if known_uuid not in present), None)
            if absent is None:
                return None
            del self.gpus[absent]
        return self.gpus.setdefault(uuid, GpuRecord())

    def adopt(self, snapshot: Snapshot, moment: float) -> tuple[set[str], bool, bool]:
        """End causes by a driver loaded again; forget GPUs that are gone for long.

        Returns:
            UUIDs of the snapshot; whether a cause has ended, and whether anything else has changed.
        """
        facts, ended, changed = snapshot["stamp"], False, False
        present = {gpu["uuid"] for gpu in snapshot["gpus"] if gpu["uuid"]}
        for gpu in snapshot["gpus"]:
            gpu_state = self.find(gpu["uuid"], present)
            if gpu_state and gpu_state.bind(facts["module"], facts["gpus"].get(sysfs_name(gpu["pci"]))):
                causes = {
                    name: cause
                    for name, cause in gpu_state.causes.items()
                    if not cause.ends and cause.kind != "recovery"
                }
                ended, changed = ended or causes != gpu_state.causes, True
                gpu_state.causes, gpu_state.bound, gpu_state.ecc, gpu_state.pages = causes, moment, 0, None
        for uuid, gpu_state in list(self.gpus.items()):
            if uuid in present:
                gpu_state.gone = None
            elif gpu_state.gone is None:
                gpu_state.gone, changed = moment, True
            elif moment - gpu_state.gone > FORGET or not gpu_state.causes:
                del self.gpus[uuid]
                changed = True
        return present, ended, changed


class Listening:
    """The GPUs to whose events a child listens. All times are seconds since boot (system.clock).

    Args:
        state: has what `note` takes down.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.uuids: set[str] = set()

    def begin(self, uuids: Iterable[object], moment: float) -> None:
        """Note that these are listened to, and no others."""
        self.note(moment)
        self.uuids = {uuid for uuid in uuids if isinstance(uuid, str)}
        self.note(moment)

    def note(self, moment: float) -> None:
        for uuid in self.uuids & self._state.gpus.keys():
            self._state.gpus[uuid].heard = moment

    def until(self, moment: float) -> dict[str, Since]:
        """Return from when on events of GPUs may not have been heard, by UUID; none of those that never were."""
        self.note(moment)
        early = MOMENT + DRIFT * moment
        heard = {uuid: gpu for uuid, gpu in self._state.gpus.items() if gpu.heard}
        return {uuid: Since(max(gpu.heard - early, 0.0), gpu.bound) for uuid, gpu in heard.items()}


def count(gpu: GpuRecord, answer: dict[str, Any]) -> tuple[bool, bool]:
    """Set the numbers that a GPU counts to those of its answer (nvml_lines.ask).

    Returns:
        whether a number is another than before; whether it is more than before.
    """
    changed = grown = False
    for name in COUNTS:
        old, new = getattr(gpu, name), answer.get(name)
        if type(new) is int and 0 <= new <= xids.HIGHEST and new != old:
            changed, grown = True, grown or (old is not None and new > old)
            setattr(gpu, name, new)
    return changed, grown


class EndedEvents:
    """Events that are over, by UUID of a GPU and by name: when each was last heard.

    Another instance, which has not found that out yet, does not bring them back.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}

    def add(self, state: State, gpu: GpuRecord, name: str, cause: Cause) -> None:
        uuid = next((uuid for uuid, record in state.gpus.items() if record is gpu), "")
        if cause.kind in EVENTS and uuid:
            times = self._last.pop(uuid, {})
            self._last = dict([*self._last.items()][1 - GPUS :])
            self._last[uuid] = {**dict([*times.items()][1 - OVER :]), name: cause.last}

    def has(self, uuid: str, name: str, cause: Cause) -> bool:
        """Return whether an event has ended, and was not heard since."""
        return cause.last <= self._last.get(uuid, {}).get(name, -1.0)


def load(path: str, boot: str) -> State:
    """Read the state of this start of the host; without one that can be trusted, log that and begin anew."""
    content = ensure.own(path)
    try:
        state = _parse_state(content)
    except (ValueError, TypeError, KeyError, AttributeError):
        if os.path.lexists(path):
            logger.warning(
                "%s cannot be used, so reasons from before this start are lost: it is not what gpushim-device-plugin "
                "writes, or users other than root can write to it",
                quote(path),
            )
        return State(boot)
    return state if state.boot == boot else State(boot)


def save(path: str, state: State) -> None:
    """Replace the file.

    Raises:
        OSError: it cannot be written, or others could write to its directory (release.prepare makes that).
    """
    folder = os.path.dirname(path)
    if not trust.ours(folder):
        raise PermissionError(1, f"{folder} must be a directory that only root can write to")
    content = {"version": VERSION, **dataclasses.asdict(state)}
    replace(path, json.dumps(content, separators=(",", ":")).encode(), MODE)


def _parse_state(content: Any) -> State:
    version, fields = content.pop("version"), {**content}
    if version != VERSION or not checker(State)(content):
        raise ValueError
    fields["unwatched"] = {child: _parse_cause(cause) for child, cause in content["unwatched"].items()}
    fields["gpus"] = {
        uuid: GpuRecord(**{**gpu, "causes": {name: _parse_cause(cause) for name, cause in gpu["causes"].items()}})
        for uuid, gpu in content["gpus"].items()
    }
    state = State(**fields)
    counts = [len(gpu.causes) <= CAUSES and len(gpu.binding) <= 2 for gpu in state.gpus.values()]
    names = [*state.unwatched, *state.gpus, *(name for gpu in state.gpus.values() for name in gpu.causes)]
    if len(state.gpus) > GPUS or not all(counts) or not all(0 < len(name) <= LONGEST for name in names):
        raise ValueError
    return state


def _parse_cause(fields: Any) -> Cause:
    cause = Cause(**fields)
    if len(cause.why) > LONGEST or cause.kind not in KINDS or cause.ends not in xids.ENDS:
        raise ValueError
    return cause
