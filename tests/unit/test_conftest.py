"""The order of files names files that are there, or one whose name has changed would begin last; and the summary."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import conftest

TESTS = Path(conftest.__file__).parent


def test_what_is_to_begin_first_is_there() -> None:
    paths = [TESTS / name for name in conftest.FIRST]
    assert [str(path) for path in paths if not path.with_name(f"test_{path.name}.py").is_file()] == []


def test_what_was_skipped_for_want_of_something_is_told() -> None:
    lines: list[str] = []
    reasons = ["there is no kubelet; build it", "there is no kubelet; build it", "with every second commit"]
    reports = [SimpleNamespace(longrepr=("programs.py", 1, f"Skipped: {reason}")) for reason in reasons]
    reporter = SimpleNamespace(stats={"skipped": reports}, write_line=lines.append)
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=("tests/unit", "-m", "not slow")))
    summary = conftest.pytest_terminal_summary(cast(pytest.TerminalReporter, reporter), cast(pytest.Config, config))
    assert [*summary] == [None]
    assert lines[:-1] == ["skipped: 2 tests: there is no kubelet; build it"]
    assert lines[-1].startswith(f"Python {platform.python_version()}; the same cases again: GPUSHIM_SHARE=")
