"""Compute modes and time slices, in whatever way they are set: which GPUs have them, and which get theirs back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuplugin.mps import compute_mode
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

HOST = snapshot([gpu(0), gpu(1)])


def take(path: Path, here: dict[str, int], values: dict[str, int]) -> list[Mapping[str, Any]]:
    """Take values where the driver has some, and return what it is asked."""
    asked: list[Mapping[str, Any]] = []

    def ask(_: Any, seconds: float, given: Mapping[str, Any]) -> dict[str, int]:
        asked.append(dict(given))
        was = {one: here[one] for one in given}
        here.update({one: value for one, value in given.items() if value is not None})
        return was

    compute_mode.take(HOST, values, str(path), 1.0, ask)
    return asked


def test_what_is_no_longer_taken_is_put_back_and_what_is_still_taken_stays(tmp_path: Path) -> None:
    path, here = tmp_path / "modes", {uuid(0): 0, uuid(1): 1}
    take(path, here, dict.fromkeys(here, 3))
    take(path, here, {uuid(1): 3})
    assert here == {uuid(0): 0, uuid(1): 3}
    assert json.loads(path.read_text()) == {uuid(1): 1}


def test_where_nothing_is_taken_any_more_nothing_is_asked_and_kept_but_what_was(tmp_path: Path) -> None:
    path, here = tmp_path / "modes", {uuid(0): 0}
    assert take(path, here, {}) == []
    take(path, here, {uuid(0): 3})
    assert take(path, here, {}) == [{uuid(0): 0}]
    assert not path.exists()
