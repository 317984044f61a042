"""A command as a process: its end, whatever a library does at the interpreter's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[4]
# What grpc does there: it waits for a thread that has already gone.
PROGRAM = """
import atexit, sys, time
sys.path[:0] = sys.argv[1:3]
import click
from gpushim.cli.program import as_process
from gpushim.ground.errors import GpushimError
atexit.register(time.sleep, 1000)
@click.command("program")
def command():
    print("written")
    %s
as_process(command, [])
"""
ENDS = {
    "pass": (0, ""),
    "raise SystemExit(3)": (3, ""),
    "raise GpushimError('no GPU', 12)": (12, "program: no GPU\n"),
    "raise click.UsageError('no such word')": (
        2,
        "Usage: program [OPTIONS]\nTry 'program --help' for help.\n\nError: no such word\n",
    ),
}


def ended(body: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-B", "-c", PROGRAM % body, str(TOP / "shim"), str(TOP / "vendor")]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("body", ENDS)
def test_it_ends_with_its_code(body: str) -> None:
    found = ended(body)
    assert (found.returncode, found.stderr, found.stdout) == (*ENDS[body], "written\n")


def test_a_bug_ends_it_too() -> None:
    found = ended("1 / 0")
    assert found.returncode == 1
    assert "ZeroDivisionError" in found.stderr
