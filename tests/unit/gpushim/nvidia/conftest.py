"""No test of NVIDIA's programs lists this machine, or reads its configuration: as with gpushim's own commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.gpuhook.trees import glibc_image
from unit.gpushim.cli.conftest import host as host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"root": {"path": "root"}}')
    return glibc_image(tmp_path)
