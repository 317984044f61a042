"""The table of bounds in docs/testing.md is that of gpushim.ground.bounds, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushim.ground import bounds

TOP = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| `([A-Z_]+)` \| (.+?) \| (.+) \| (.+) \| (.+) \|$", (TOP / "docs/testing.md").read_text(), re.M
)
OWN = ("test_bounds", "test_confine")  # whose tests say which bound is theirs
UNITS = {"": 0, " KiB": 10, " MiB": 20}


def test_the_table_has_all_bounds_and_no_other() -> None:
    numbers = {name: value for name, value in vars(bounds).items() if name.isupper()}
    listed = {}
    for name, number, *_ in ROWS:
        digits, unit = re.fullmatch(r"(\d+)(.*)", number).groups()  # type: ignore[union-attr]
        listed[name] = int(digits) << UNITS[unit]
    assert [*listed.items()] == [*numbers.items()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_names_tests_of_that_bound(row: tuple[str, ...]) -> None:
    for name in re.findall("`([^`]+)`", row[4]):
        path = (TOP / "tests" / (name if name.startswith("unit/") else f"e2e/{name}")).with_suffix(".py")
        assert "def test_" in path.read_text()
        assert row[0] in path.read_text() or name not in OWN
