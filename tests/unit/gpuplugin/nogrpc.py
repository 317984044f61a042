"""A module of the plugin's that cannot be imported, as for want of grpcio."""

from __future__ import annotations

import importlib
import sys

import pytest


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Have it fail to be imported, whether it has been imported or not."""
    package, _, name = module.rpartition(".")
    monkeypatch.delattr(importlib.import_module(package), name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
