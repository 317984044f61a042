"""docs/health.md says of each XID what the plugin's table has."""

from __future__ import annotations

import re
from pathlib import Path

from gpuplugin.health import reason
from gpuplugin.settings import xids

TEXT = (Path(__file__).parents[2] / "docs/health.md").read_text()
ROWS = re.findall(r"^\| ([0-9, -]+)(?:, all that are not here)? \| (yes|no)\b[^|]*\| ([^|]*)\|$", TEXT, re.MULTILINE)
ENDS = {
    f"{xids.TRANSIENT:.0f} s after the last one, when the GPU answers": xids.TIME,
    f"{xids.SETTLE:.0f} s after the last one, when the driver asks for no recovery action": xids.ACTION,
    "when the driver has asked for a recovery action, and asks no more": xids.AGAIN,
    "": "",
}


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_each_xid_is_in_the_row_of_its_verdict() -> None:
    told = {xid: (counts == "yes", ENDS[ends.strip()]) for row, counts, ends in ROWS for xid in numbers(row)}
    assert told == {xid: (one.counts, one.ends if one.counts else "") for xid, one in xids.TABLE.items()}


def test_what_the_table_does_not_have_is_in_a_row() -> None:
    (row,) = [line for line in TEXT.splitlines() if "all that are not here" in line]
    assert row.endswith(f"| yes | {next(text for text, ends in ENDS.items() if ends == xids.UNKNOWN.ends)} |")


def test_the_reasons_that_are_shown_are_said_so() -> None:
    for clause in (xids.text(48), reason.ACTIONS[1]):
        assert f" {clause}" in TEXT
