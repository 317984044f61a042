"""Each target for a short while from a fixed seed, and once more each input that was a failure: see README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import harness

TESTS = Path(__file__).parents[1]
RUNS = {"cdi_json": 150, "config_json": 200, "proc_files": 200}  # those that are slow
USUAL = 600
SAVED = [(name, path.name) for name in harness.names() for path in harness.regressions(name)]


@pytest.mark.parametrize("name", harness.names())
def test_nothing_is_found_in_a_short_while(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz.harness", name, f"--runs={RUNS.get(name, USUAL)}", f"--found={tmp_path}"]
    sources = ":".join(str(TESTS.parent / place) for place in ("shim", "hook", "tests"))
    env = {**os.environ, "PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", timeout=300, check=False
    )
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (done.returncode, found) == (0, []), done.stderr[-4000:]
    units = re.search(r"number_of_executed_units: (\d+)", done.stdout + done.stderr)
    assert units
    assert int(units[1]) >= RUNS.get(name, USUAL)  # libFuzzer ends a series of changes that it has begun


@pytest.mark.parametrize(("name", "file"), SAVED)
def test_what_once_failed(name: str, file: str) -> None:
    one = harness.timed(harness.target(name).one)
    with harness.bounded():
        one((harness.REGRESSIONS / name / file).read_bytes())


def test_each_directory_of_saved_inputs_is_of_a_target() -> None:
    assert {path.name for path in harness.REGRESSIONS.iterdir()} <= {*harness.names()}
