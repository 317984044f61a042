"""SECURITY.md names only tests and vulnerable builds that are there, and every vulnerable build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TEXT = (TOP / "SECURITY.md").read_text()
TESTS = sorted(set(re.findall(r"`((?:unit|e2e|fuzz)/[\w/]+(?:::\w+)?)`", TEXT)))
BUILDS = set(re.findall(r"`((?:T|P)-[^`]+)`", TEXT))
SOURCES = sorted((TOP / "tests/e2e").glob("vulnerable*.py"))


@pytest.mark.parametrize("name", TESTS)
def test_the_test_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    assert f"def {function}" in (TOP / "tests" / f"{path}.py").read_text()


def test_all_vulnerable_builds_are_named_and_no_other() -> None:
    found = {name for source in SOURCES for name in re.findall(r'^    "((?:T|P)-[^"]+)": ', source.read_text(), re.M)}
    assert found == BUILDS
