"""A machine of its own for each test: a simulated host, a config.toml and a state directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.gpushim.inventory.machine import Machine, end


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    end(machine.state)
