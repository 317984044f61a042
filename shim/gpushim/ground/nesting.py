"""How deep JSON is nested, found out without following it: readers of JSON recurse, and end at some depth.

Out of scope: whether it is JSON.
"""

from __future__ import annotations

import re

_STRING = re.compile(b'"[^"]*"?')  # where no quotes are escaped
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes({*range(256)} - {*b"[]{}"})


def deeper(text: bytes, most: int) -> bool:
    """Say whether JSON is nested deeper than some levels; what has no end is.

    Args:
        text: the JSON.
        most: levels; a list of numbers has one.
    """
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", plain).translate(_SQUARE, _OTHERS)
    for _ in range(most):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")  # the innermost level, at least
    return bool(brackets)
