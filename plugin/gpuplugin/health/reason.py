"""The words for a cause: why a device is not to be handed out, since when, until when, and what to do."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuplugin.settings import xids
from gpushim.ground import system
from gpushim.ground.logs import logger
from gpushim.inventory import earlier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplugin.health.causes import Cause
    from gpushim.ground.model import MigInstance, Snapshot

# The driver's recovery action, field 230 (nvmlDeviceGpuRecoveryAction_t; "GPU memory error management" in NVIDIA's
# documentation says what each asks for). 5 (causes.FINE) is about IMEX, memory that nodes share; the GPU works, and
# NVIDIA's DRA driver goes on handing it out, as this does. 3 asks to end work; more of it would not help.
ACTIONS = {
    1: "the driver asks for a reset of the GPU (nvidia-smi --gpu-reset)",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to end all work that uses this GPU together with others (drain P2P)",
    4: "the driver asks to let this GPU's work end, and then to reset it (nvidia-smi --gpu-reset)",
    6: "the driver asks for a reset of the GPU's PCI bus",
    7: "the driver asks for a reboot of the system",
}
TEXTS = {
    "ecc": "an uncorrectable memory error (double-bit ECC)",
    "lost": "the GPU is lost from the bus",
    "gone": "NVML does not list the GPU any more",
    "rows": "a memory row could not be replaced, so the GPU is to be exchanged (RMA)",
}
LAYOUT = "layout"  # kind of a GPU that waits for its MIG layout
# What people do about reasons, the gravest first: of several reasons the first counts. "nvml" is to find out why NVML
# does not answer, "end" to end work that uses this GPU together with others, and "wait" nothing.
CURES = ("exchange", "reboot", "nvml", "end", "reset", "wait")
# Of kinds; "reset" of others.
_CURES = {
    **dict.fromkeys(("lost", "gone"), "reboot"),
    **dict.fromkeys(("fabric", LAYOUT), "wait"),
    "rows": "exchange",
    "unwatched": "nvml",
}
_OF_ACTIONS = {1: "reset", 3: "end", 4: "reset"}  # "reboot" of others, also of those that are not known
# What a GPU that does not answer has at the same time, the gravest first: it is one cause.
SILENT = ("lost", "gone", "error", "unwatched")
GIVEN = "is not given out", "can be given out again"  # as `log` says it of the device plugin's devices
GIVER = "giver"  # kind of what another front or driver gives out, or has given
LONG = 240  # characters of a sentence that is not repeated for each device
_RELOAD = "when the driver is loaded again or the host has started again"
UNTIL = {
    "": "when the driver, which is asked every few seconds, says so no more",
    xids.TIME: f"{xids.TRANSIENT:.0f} s after the last one, when the GPU answers",
    xids.ACTION: f"{xids.SETTLE:.0f} s after the last one, when the driver asks for nothing; else {_RELOAD}",
    xids.AGAIN: f"when the driver, having asked for a recovery action, does so no more; else {_RELOAD}",
}


@dataclass(frozen=True)
class Reason:
    """Why a device is not to be handed out.

    Attributes:
        kind: "xid", "ecc", "recovery" (the driver asks for one), "lost" (from the bus), "gone" (from NVML's list),
            "rows", "error" (calls fail), "fabric" (of NVLinks, not ready), "unwatched" (not watched), "layout" (it
            waits to be cut) or "giver" (somebody else may give it out).
        text: a clause for people.
        since: seconds since boot (system.clock).
        until: a clause: when it ends.
        gi: the GPU instance that it concerns; None: the whole GPU.
        ci: the compute instance that it concerns; None: all of that GPU instance.
        number: of the XID or recovery action; 0: none.
        passes: it ends some time after the last event, without anything that people do.
    """

    kind: str
    text: str
    since: float
    until: str
    gi: int | None = None
    ci: int | None = None
    number: int = 0
    passes: bool = False

    @property
    def when(self) -> float:
        """Return since when by the wall clock as it is now, in seconds since 1970; for people alone."""
        return time.time() - system.clock() + self.since

    @property
    def cure(self) -> str:
        """Return what people do about it, one of CURES."""
        if self.passes:
            return "wait"
        if self.kind == "recovery":
            return _OF_ACTIONS.get(self.number, "reboot")
        return xids.verdict(self.number).cure if self.kind == "xid" else _CURES.get(self.kind, "reset")

    def concerns(self, mig: MigInstance) -> bool:
        return self.gi is None or (self.gi == mig["gi"] and self.ci in (None, mig["ci"]))


def reasons(causes: Iterable[Cause]) -> list[Reason]:
    """Return the reasons for causes, the oldest first; of SILENT the gravest stands for all."""
    ordered = sorted(causes, key=lambda cause: (cause.since, cause.kind, cause.number))
    silent = [cause for cause in ordered if cause.kind in SILENT]
    gravest = min(silent, key=lambda cause: SILENT.index(cause.kind), default=None)
    return [
        replace(make_reason(gravest), since=cause.since) if gravest and cause is silent[0] else make_reason(cause)
        for cause in ordered
        if cause.kind not in SILENT or cause is silent[0]
    ]


def cure(reasons: Iterable[Reason]) -> str:
    """Return what people do about all reasons of a device, one of CURES."""
    return min((reason.cure for reason in reasons), key=CURES.index, default="wait")


def texts(problems: Mapping[str, Sequence[Reason]], snapshot: Snapshot) -> dict[str, str]:
    """Return why devices are not given out, by UUID; for a silent device this is the snapshot's problem."""
    problem = {gpu["index"]: gpu["problem"] or "" for gpu in snapshot["gpus"]}
    problem = {index: text for index, text in problem.items() if earlier.FAILS in text or earlier.HANGS in text}
    gpus = {gpu["uuid"]: gpu["index"] for gpu in snapshot["gpus"]}
    gpus.update((mig["uuid"], mig["gpu"]) for mig in snapshot["mig"])
    return {
        uuid: _sentence(device_reasons, problem.get(gpus.get(uuid, -1), ""))
        for uuid, device_reasons in problems.items()
    }


def _sentence(reasons: Sequence[Reason], problem: str) -> str:
    has_problem = problem and any(reason.kind in SILENT for reason in reasons)
    texts = [reason.text for reason in reasons if not (has_problem and reason.kind in SILENT)]
    return "; ".join([problem, *texts] if has_problem else texts)


def log(
    before: Mapping[str, str],
    current: Mapping[str, str],
    resources: Mapping[str, str],
    words: tuple[str, str] = GIVEN,
) -> None:
    """Log once of each device that it has become unusable, and that it is usable again.

    Args:
        before: why devices were unusable when this was called last, or "", by UUID.
        current: the same now; of others nothing is said.
        resources: of the devices, by UUID.
        words: what an unusable device is, and one that is usable again.
    """
    for uuid, problem in current.items():
        if problem and problem != before.get(uuid):
            write = logger.info if is_of_others(problem) else logger.warning
            write("%s of %s %s: %s", uuid, resources[uuid], words[0], problem)
        elif before.get(uuid) and not problem:
            logger.info("%s of %s %s", uuid, resources[uuid], words[1])


def is_of_others(problem: str) -> bool:
    """Return whether a device is not given out because a claim has it, which is no illness."""
    return problem.startswith("claim ") and "; " not in problem


def brief(sentence: str) -> str:
    """Return the sentence for each device about a problem of all: the first clause of a long sentence."""
    first, _, tail = sentence.partition("; ")
    return f"{first}; gpushim device-plugin status says more" if tail and len(sentence) > LONG else sentence


def make_reason(cause: Cause) -> Reason:
    fields = cause.gi, cause.ci, cause.number, cause.ends == xids.TIME
    return Reason(cause.kind, _clause(cause), cause.since, UNTIL[cause.ends], *fields)


def _clause(cause: Cause) -> str:
    if cause.kind == "xid":
        return xids.text(cause.number) if cause.number else "further XIDs"
    if cause.kind == "recovery":
        unknown = f"the driver asks for recovery action {cause.number}, which gpushim does not know"
        return ACTIONS.get(cause.number, unknown)
    if cause.kind == "error":
        return f"the GPU's calls fail: {cause.why}"
    if cause.kind == "fabric":
        return f"its NVLink fabric is not ready, so CUDA fails (error 802): {cause.why}; see nvidia-fabricmanager"
    if cause.kind == "unwatched":
        return f"the GPU cannot be watched: {cause.why}"
    return TEXTS[cause.kind]
