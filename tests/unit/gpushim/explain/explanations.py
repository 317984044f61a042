"""An inventory to explain containers by, and their configurations."""

from __future__ import annotations

import posix
from pathlib import Path
from typing import Any

import pytest

from gpushim.explain.explain import build_spec
from gpushim.inventory import present
from unit.gpushim.decision import inventories

DEVICES = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The host of inventories.py, and nothing of this one."""
    inventory = {**inventories.drawing(files=inventories.FILES), "runtime": "/bin/sh"}
    monkeypatch.setitem(posix.environ, b"GPUSHIM_CONFIG", b"/none.toml")
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", bytes(tmp_path / "state"))
    monkeypatch.setattr(present, "look", lambda _: inventory)
    return inventory


def shape(env: list[str], privileged: bool = True) -> dict[str, Any]:
    return build_spec(env, privileged, {}, [])


def asked(report: dict[str, Any], what: str) -> list[tuple[str, str]]:
    return [(row["from"], row["effect"]) for row in report["asked"] if row["what"] == what]
