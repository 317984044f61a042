from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpushim import unread

A = {"process": {"env": ["A_B=0"]}}
CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("x = 1", {}, False),
    ("x = 1", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "A_B=0"]}}, False),
    ("x = 1", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}, True),
    ("x = 1", {"process": {"env": 1}}, True),  # refused for what it is, in the end
    ("x = 1", A, False),
    ("x = A_B", A, True),
    ("x = A_B_C", A, False),
    ("# A_B\nx = 1", A, False),
    ("x = '#' # A_B", A, False),
    ("x = ['#', 'A_B']", A, True),
    ("x = ' # A_B", A, True),  # who knows
    ("\udcff = [\nA_B", A, True),
    ("[requests]\n", A, False),  # valid: nothing counts but what it says
]


@pytest.mark.parametrize(("text", "spec", "may"), CASES)
def test_who_may_ask_under_a_wrong_configuration(tmp_path: Path, text: str, spec: Any, may: bool) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert unread.may_ask(spec, str(config), str(tmp_path)) is may


def test_quotes_without_an_end_take_no_time(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("'\n" * 200_000 + "'#" * 200_000)
    assert unread.may_ask(A, str(config), str(tmp_path)) is False
