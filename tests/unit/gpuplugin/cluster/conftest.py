"""Watches here are short, and their ends no server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplugin.cluster import pause
from unit.gpuplugin.cluster.apiserver import ApiServer


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watch that ends early wait."""
    monkeypatch.setattr(pause, "SPREAD", 0.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server that has every object, empty."""
    with ApiServer(tmp_path, lambda _: {}).running() as found:
        yield found
