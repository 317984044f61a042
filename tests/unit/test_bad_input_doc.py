"""docs/testing.md has all 40 groups, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", (TOP / "docs/testing.md").read_text(), re.MULTILINE)
FILES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[3])})


def test_all_groups_are_there() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 41))
    assert all(re.search("`.+`", tests) for *_, tests in ROWS)


@pytest.mark.parametrize("name", FILES)
def test_it_names_tests_that_exist(name: str) -> None:
    path = TOP / "tests" / (name if name.startswith("unit/") else f"e2e/{name}")
    assert re.search(r"^def test_", path.with_suffix(".py").read_text(), re.MULTILINE)


def test_no_file_of_bad_input_is_forgotten() -> None:
    assert {path.stem for path in (TOP / "tests/e2e").glob("test_bad_*.py")} <= {*FILES}
