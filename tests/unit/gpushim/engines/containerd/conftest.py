"""What tests of containerd's settings stand on: the version that is installed, and k3s's directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.engines.containerd import process


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return which containerd is installed; 1.7 unless a test says otherwise."""

    def version(*numbers: int) -> None:
        monkeypatch.setattr(process, "_version", lambda *_: numbers)

    version(1, 7)
    return version


@pytest.fixture
def k3s(tmp_path: Path) -> Path:
    """The directory of k3s's containerd."""
    folder = tmp_path / "k3s" / "agent" / "etc" / "containerd"
    folder.mkdir(parents=True)
    return folder
