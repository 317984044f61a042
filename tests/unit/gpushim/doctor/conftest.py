"""A healthy patient for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.gpushim.doctor.patient import Patient


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own state and settings out of the tests."""
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A healthy host, listed by a refresh."""
    found = Patient(tmp_path)
    found.patch = monkeypatch
    monkeypatch.setattr("gpushim.engines.docker.dockerd.ask", found.docker)
    with found.listening():
        yield found


@pytest.fixture
def unlisted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A healthy host before its first refresh, which is enough for checks of engines."""
    found = Patient(tmp_path, refreshed=False)
    found.patch = monkeypatch
    monkeypatch.setattr("gpushim.engines.docker.dockerd.ask", found.docker)
    with found.listening():
        yield found
