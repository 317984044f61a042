"""What each XID says about a GPU's health, and which ones count here.

An XID is an error report of NVIDIA's driver. Whether a GPU can still be handed out after one, NVIDIA's catalog says
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); what it calls "immediate action" decides here,
together with the reference, its own device plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushim.ground.errors import quote

# How a reason ends. ACTION and AGAIN also end when the driver is loaded again or the host starts again: the only way
# where the driver does not tell its recovery action.
TIME = "time"  # some time after the last one, when the GPU's calls answer well
ACTION = "action"  # when the driver, some time after the last one, says that no recovery action is needed
AGAIN = "again"  # when the driver has asked for a recovery action since, and says none again
ENDS = ("", TIME, ACTION, AGAIN)
TRANSIENT = 60.0  # seconds after the last one that TIME is
SETTLE = 10.0  # seconds that the driver has for raising its recovery action: three polls
NAMED = 16  # XIDs in a sentence
HIGHEST = 0xFFFFFFFF
VARIABLES = ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")


@dataclass(frozen=True)
class Verdict:
    """The verdict on an XID.

    Attributes:
        meaning: a clause for people.
        counts: whether a device that had it is unhealthy, unless settings say otherwise.
        ends: TIME, ACTION or AGAIN. TIME concerns the MIG instance that had it; the others the whole GPU.
        cure: what people do about it, one of gpuplugin.health.reason.CURES.
    """

    meaning: str
    counts: bool
    ends: str
    cure: str = "reset"


def _make_table() -> dict[int, Verdict]:
    verdicts: dict[int, Verdict] = {}
    for counts, ends, rows in (
        (False, TIME, _APPLICATION),
        (False, TIME, _NOTICES),
        (True, TIME, _ENGINES),
        (True, ACTION, _RESETS),
        (True, AGAIN, _SILENT),
    ):
        for row in rows.strip().splitlines():
            numbers, _, meaning = row.strip().partition(" ")
            first, _, last = numbers.partition("-")
            verdicts.update(dict.fromkeys(range(int(first), int(last or first) + 1), Verdict(meaning, counts, ends)))
    return {**verdicts, **{number: Verdict(*fields) for number, fields in _OTHERS.items()}}


# RESTART_APP, CHECK_APP: the catalog blames the application, which has ended; the GPU is as good as before.
_APPLICATION = """
11 an invalid stream of commands
25 an invalid or illegal stream of commands
32 an invalid or corrupted push buffer
69 a class error in the graphics engine
80 corrupted data sent to the GPU
"""
# IGNORE: the catalog asks for no action at once. 63: memory rows that are replaced at the next reset; the GPU works
# until then (NVIDIA's "GPU memory error management", error recovery flags). 154: the recovery action, which is asked
# for.
_NOTICES = """
14 an error that was made up for a test
37 a firmware error
38 a firmware error
44 a fault while the context was switched
63 a memory row is to be replaced at the next reset
66 an illegal access by the driver
67 an illegal access by the driver
92 a high rate of corrected memory errors
93 the limit of erasing the InfoROM is reached
106-107 a test message
108 an error of a remote NVLink translation
121 a corrected error of the chip-to-chip link
137 a fault of an NVLink peer's access
141 an error on the fast path
152 an error of the DLA's memory unit
153 a timeout of the DLA
154 the recovery action has changed
157 a failure to retire a resource
160-161 the retirement of a channel
"""
# RESTART_APP: restart the application; and if it comes again, ask support. So no proof of a fault in the GPU.
_ENGINES = """
8 the GPU stopped processing
39-41 a fault of the copy engine
60 a fault of the security engine
70-72 a fault of the copy engine
75-77 a fault of the copy engine
82 a fault of the JPEG engine
83-84 a fault of the video decoder
85 a fault of the copy engine
86 a fault of the optical flow engine
88-89 a fault of the video decoder
94 a contained memory error (ECC)
96-98 a fault of the video decoder
99-105 a fault of the JPEG engine
126-135 a fault of the copy engine
139 a fault of the optical flow engine
"""
# RESET_GPU, and the column "Xid 154 linkage" is filled: the driver raises its recovery action with them.
_RESETS = """
62 the power management unit halted
64 a memory row could not be replaced
95 an uncontained memory error (ECC)
110 a security fault
120 an error of the GPU's firmware (GSP)
136 an NVLink could not be trained
143 the GPU could not be started
155 an NVLink error
156 a resource was retired
"""
# RESET_GPU without that linkage: that no action is told proves nothing.
_SILENT = """
46 the GPU stopped processing
119 the GPU's firmware does not answer (GSP)
140 an unrecovered memory error (ECC)
158 a fatal timeout
"""
# Those of the first four are ignored by NVIDIA's device plugin, too; so are the two that are disputed.
_OTHERS: dict[int, tuple[Any, ...]] = {
    13: ("an exception in the graphics engine", False, TIME),  # catalog: RESTART_APP
    31: ("a memory page fault", False, TIME),  # catalog: RESTART_APP
    43: ("the GPU ended an application's work", False, TIME),  # catalog: IGNORE
    45: ("an application's work was removed", False, TIME),  # catalog: WORKFLOW_XID_45
    # Disputed (k8s-device-plugin #945): the catalog has it among the engines, "restart the application".
    68: ("a fault of the video decoder", False, TIME),
    # Disputed (k8s-device-plugin #1974): the catalog asks for a reset. The driver raises its recovery action, which
    # counts, if it needs one.
    109: ("a timeout while the context was switched", False, ACTION),
    48: ("an uncorrectable memory error (double-bit ECC)", True, ACTION),  # catalog: WORKFLOW_XID_48
    54: ("the GPU's power is not connected well", True, AGAIN, "reboot"),  # catalog: CHECK_MECHANICALS
    74: ("an NVLink error", True, ACTION),  # catalog: WORKFLOW_NVLINK_ERR
    78: ("a virtual GPU could not be started", True, ACTION),  # catalog: UPDATE_SWFW
    79: ("the GPU has fallen off the bus", True, ACTION, "reboot"),  # catalog: RESTART_BM
    **dict.fromkeys(range(144, 151), ("an NVLink error", True, ACTION)),  # catalog: WORKFLOW_NVLINK5_ERR
    151: ("a key could not be changed", True, AGAIN, "reboot"),  # catalog: RESTART_VM
    159: ("an error of the memory interconnect", True, AGAIN),  # catalog: CHECK_UVM
}
TABLE = _make_table()
# The reference takes any other XID for critical; NVIDIA's DRA driver takes the driver's word instead (#1441).
UNKNOWN = Verdict("", True, ACTION)


def verdict(xid: int) -> Verdict:
    return TABLE.get(xid, UNKNOWN)


def text(xid: int) -> str:
    meaning = verdict(xid).meaning
    return f"XID {xid}, {meaning}" if meaning else f"XID {xid}"


@dataclass(frozen=True)
class Choice:
    """Which checks the settings leave; `choose` makes one.

    Attributes:
        checks: whether there are checks other than those for XIDs.
        xids: whether XIDs count that are not in `on`.
        off: XIDs that do not count.
        on: XIDs that count, whatever else is said.
    """

    checks: bool = True
    xids: bool = True
    off: frozenset[int] = frozenset()
    on: frozenset[int] = frozenset()

    def counts(self, xid: int) -> bool:
        return xid in self.on or (self.xids and xid not in self.off and verdict(xid).counts)


def choose(disable: str, enable: str, notes: list[str], sources: Sequence[str] = VARIABLES) -> Choice:
    """Read the two settings as the reference documents its variables.

    Args:
        disable: XIDs, separated by commas, that do not count; "xids" for all of them, "all" for all checks.
        enable: XIDs that count all the same; "all" or "xids" takes back the same word of `disable`.
        notes: gets a sentence for each word that is none of these, and one if all or XIDs are off.
        sources: where both stand.
    """
    off, disabled = _parse_words(sources[0], disable, notes)
    on, enabled = _parse_words(sources[1], enable, notes)
    all_back = "all" in enabled
    checks = "all" not in disabled or all_back
    choice = Choice(checks, checks and ("xids" not in disabled or all_back or "xids" in enabled), off - on, on)
    if not choice.xids:
        exceptions = f", except for XID {', '.join(map(str, sorted(on)[:NAMED]))}" if on else ""
        effect = "XIDs are ignored" if checks else "all health checks are off"
        notes.append(f"{sources[0]}: {effect}, and GPUs that fail may be given out{exceptions}")
    return choice


def _parse_words(source: str, value: str, notes: list[str]) -> tuple[frozenset[int], set[str]]:
    numbers, words = set(), set()
    for word in (part.strip().lower() for part in value.split(",")):
        if word in ("all", "xids"):
            words.add(word)
        elif word.isascii() and word.isdigit() and len(word) <= len(str(HIGHEST)) and 0 < int(word) <= HIGHEST:
            numbers.add(int(word))
        elif word:
            notes.append(
                f'{source} has "{quote(word)}", which does nothing; write numbers of XIDs, xids or all, '
                "separated by commas"
            )
    return frozenset(numbers), words
