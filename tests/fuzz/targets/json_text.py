"""fastjson against `json`: the same documents, the same values, and numbers that keep their spelling."""

from __future__ import annotations

import json
from typing import Any

from fuzz.oracles import refused
from gpushim.ground import fastjson
from gpushim.ground.errors import GpushimError

VALUES = (1.0, 1e22, -0.0, 12345678901234567890123, "\u2028", "\ud83d\ude00", "\udc00")


def seeds() -> list[bytes]:
    """Return documents with each kind of value, and broken ones."""
    texts = [
        '{"a":[1,-0,1e3,-0.0,1E+2,0.10,1e400,null,true,"\\u00e9\\ud800"],"b":{"":{}}}',
        "[1,2",
        "[NaN]",
        "1 x",
        " 1 ",
    ]
    return [
        *(text.encode() for text in texts),
        b"\xff",
        b"[" * 2000 + b"]" * 2000,
        b"[" * 300 + b"1e3" + b"]" * 300,
        b"[" * 980 + b"]" * 980,
    ]


def one(data: bytes) -> None:
    """Read and write one document."""
    try:
        value = fastjson.loads(data)
    except GpushimError as error:
        refused(error)
        assert "fast reader refused" not in str(error)
        known = "too deeply" in str(error) or "twice in one object" in str(error)
        assert known or not _is_json(data), "json reads it"
        return
    assert _is_json(data), "json refuses it"
    try:
        text = fastjson.dumps(value)
    except GpushimError as error:
        assert "too deeply" in str(error)
        return
    assert _spelled(text) == _spelled(data.decode())


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _spelled(text: str) -> Any:
    return json.loads(text, parse_float=lambda number: ("float", number), parse_int=lambda number: ("int", number))
