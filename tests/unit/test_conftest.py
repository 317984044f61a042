"""The order of files in tests/conftest.py names files that are there: a name that has changed would begin last."""

from __future__ import annotations

from pathlib import Path

import conftest

TESTS = Path(conftest.__file__).parent


def test_what_is_to_begin_first_is_there() -> None:
    paths = [TESTS / name for name in conftest.FIRST]
    assert [str(path) for path in paths if not path.with_name(f"test_{path.name}.py").is_file()] == []
