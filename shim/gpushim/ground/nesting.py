"""The depth of JSON, without recursion: readers of JSON recurse, and end at some depth."""

from __future__ import annotations

import re

_STRING = re.compile(b'"[^"]*"?')  # where no quotes are escaped
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes({*range(256)} - {*b"[]{}"})


def deeper(text: bytes, levels: int) -> bool:
    """Return whether JSON is nested deeper than `levels`, as is JSON without an end; a list of numbers has one."""
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", plain).translate(_SQUARE, _OTHERS)
    for _ in range(levels):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")  # the innermost level, at least
    return bool(brackets)
