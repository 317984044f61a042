"""What a vulnerable build (tests/e2e/vulnerable*.py) takes away is there: a name that has changed is found soon."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


def given(change: str) -> set[str]:
    """The names that the new end of a module sets again, but for those that it uses itself."""
    found = set[str]()
    for node in ast.parse(change).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(re.findall(r"\w+", ast.unparse(node.targets[0]).partition("[")[0]))
    return {name for name in found if len(re.findall(rf"\b{name}\b", change)) == 1}


@pytest.mark.slow
def test_what_a_build_changes_is_there() -> None:
    modules = sorted(path.stem for path in (TOP / "tests/e2e").glob("vulnerable*.py"))
    builds = {
        name: build for each in modules for name, build in importlib.import_module(f"e2e.{each}").BUILDS.items()
    }
    for name, build in builds.items():
        for file, change in build.changes.items():
            text = (TOP / file).read_text()
            if isinstance(change, str):
                assert {one for one in given(change) if not re.search(rf"\b{one}\b", text)} == set(), (name, file)
            else:
                assert text.count(change[0]) == 1, name


def test_what_is_given() -> None:
    assert given("_real = walk\ndef walk(*_): return _real\nstop = 1\nTABLE['x']['y'] = 2") == {"stop", "TABLE"}
