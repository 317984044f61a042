"""Watches here are short, and their ends no server's."""

from __future__ import annotations

import pytest

from gpuplugin.cluster import pause


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watch that ends early wait."""
    monkeypatch.setattr(pause, "SPREAD", 0.0)
