"""How deep JSON is, without following it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.ground.nesting import deeper

TEXTS = st.text('\\"[]{}a\u00e9\ud800', max_size=5)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(), lambda part: st.lists(part) | st.dictionaries(TEXTS, part), max_leaves=20
)


def depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


@given(VALUES)
def test_any_json(value: Any) -> None:
    text, levels = json.dumps(value).encode(), depth(value)
    assert not deeper(text, levels)
    assert not levels or deeper(text, levels - 1)


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b"]", b"[" * 33 + b"]" * 33, b'"\\"' + b"]" * 9 + b'"['])
def test_what_has_no_end_is_deep(text: bytes) -> None:
    assert deeper(text, 32)
