"""A machine of its own for each test: a simulated host, a config.toml and a state directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import scratch
from unit.gpushim.inventory.machine import Machine, end


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    end(machine.state)


@pytest.fixture
def near() -> Iterator[Path]:
    """A directory near the root, for those who try each call of thousands of walks that begin there."""
    with tempfile.TemporaryDirectory(dir=scratch.top()) as top:
        yield Path(top)
