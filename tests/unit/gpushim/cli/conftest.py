"""No test of the command line lists this machine, or reads its configuration."""

from __future__ import annotations

import pytest

from gpushim.inventory import present
from unit.gpushim.cli.commands import Host


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host()
    monkeypatch.setattr(present, "look", found.look)
    monkeypatch.setattr("gpushim.stamp.config_path", lambda: "/none.toml")
    return found
