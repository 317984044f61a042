"""A machine of its own for each test: a simulated host, a config.toml and a state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.gpushim.inventory.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
