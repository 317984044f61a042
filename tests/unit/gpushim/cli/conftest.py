"""No test of the command line lists this machine, or reads its configuration or state."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.inventory import present
from unit.gpushim.cli.commands import Host


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    found = Host()
    monkeypatch.setattr(present, "look", found.look)
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: "/none.toml")
    monkeypatch.setattr("gpushim.ground.system.state_dir", lambda: str(tmp_path / "state"))
    return found
