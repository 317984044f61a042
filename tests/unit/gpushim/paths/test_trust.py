"""Whom a process trusts, in a user namespace and where it cannot know that."""

from __future__ import annotations

import pytest

from gpushim.ground import system
from gpushim.paths import trust


@pytest.mark.parametrize(
    ("mapping", "there"),
    [("0 0 4294967295\n", False), ("0 1000 1\n", True), ("", True), (None, False)],  # None: it cannot be read
)
def test_the_overflow_user_is_root_in_a_user_namespace_alone(
    monkeypatch: pytest.MonkeyPatch, mapping: str | None, there: bool
) -> None:
    monkeypatch.setattr(system, "text", lambda *_: mapping)
    assert trust.trusted(65534) is there
