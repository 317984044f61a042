"""What is said of a cause: why a device is not to be handed out, since when, until when, and what to do.

Out of scope: what becomes a cause, and when it ends (health.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin import xids

if TYPE_CHECKING:
    from gpuplugin.causes import Cause
    from gpushim.model import MigInstance

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
_RELOAD = "when the driver is loaded anew or the host has started anew"
UNTIL = {
    "": "when a poll does not see it any more",
    xids.TIME: f"{xids.TRANSIENT:.0f} s after the last one, when the GPU answers",
    xids.ACTION: f"{xids.SETTLE:.0f} s after the last one, when the driver asks for nothing; else {_RELOAD}",
    xids.AGAIN: f"when the driver, having asked for a recovery action, does so no more; else {_RELOAD}",
}


@dataclass(frozen=True)
class Reason:
    """Why a device is not to be handed out.

    Attributes:
        kind: "xid", "ecc", "recovery" (the driver asks for one), "lost" (from the bus), "gone" (from NVML's list),
            "rows", "error" (calls fail) or "blind" (not watched).
        text: a clause for people, with the time.
        since: seconds since the epoch.
        until: a clause: when it ends.
        gi: the GPU instance that it concerns; None: the whole GPU.
        ci: the compute instance that it concerns; None: all of that GPU instance.
    """

    kind: str
    text: str
    since: float
    until: str
    gi: int | None = None
    ci: int | None = None

    def concerns(self, mig: MigInstance) -> bool:
        """Say whether it concerns a MIG instance of its GPU."""
        return self.gi is None or (self.gi == mig["gi"] and self.ci in (None, mig["ci"]))


def of(cause: Cause) -> Reason:
    """Return the reason that a cause is."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cause.since))
    text = f"{_clause(cause)} (since {since})"
    return Reason(cause.kind, text, cause.since, UNTIL[cause.ends], cause.gi, cause.ci)


def _clause(cause: Cause) -> str:
    if cause.kind == "xid":
        return xids.text(cause.number) if cause.number else "further XIDs"
    if cause.kind == "recovery":
        unknown = f"the driver asks for recovery action {cause.number}, which gpushim does not know"
        return ACTIONS.get(cause.number, unknown)
    if cause.kind == "error":
        return f"the GPU's calls fail: {cause.why}"
    if cause.kind == "blind":
        return f"the GPU cannot be watched: {cause.why}"
    return TEXTS[cause.kind]
