"""Regular expressions of selectors, in time that grows with the pattern and the text alone, whatever both are.

Python's own search goes back and tries again: a claim's author writes the pattern, and few alternatives in a row take
it for ever. So a pattern becomes steps, each from the places that are reached so far to the next ones.
Of RE2's language there is what is plain: letters, classes, groups, and one of ?*+ after a letter or class.
Out of scope: the language around them (cel.py).
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[str, "set[int]"], "set[int]"]

LONGEST = 64  # characters of a text, as an attribute may have
_LETTER = r"[\w/:;,@#%&=<>~! -]|\."
_CLASS = r"\[\^?(?:[\w./: ](?:-\w)?)+\]"
_TOKEN = re.compile(rf"(?P<one>{_LETTER}|{_CLASS})(?P<times>[?*+]?)|(?P<sign>[|^$)]|\((?!\?))", re.ASCII)


@lru_cache(maxsize=256)
def read(pattern: str) -> Step | None:
    """Read a pattern; None of one that has more than is known here, or is none.

    Args:
        pattern: in RE2's language.
    """
    tokens, place = list[re.Match[str]](), 0
    while place < len(pattern):
        found = _TOKEN.match(pattern, place)
        if not found:
            return None
        tokens.append(found)
        place = found.end()
    rest = iter(tokens)
    try:
        step, end = _alternatives(rest)
    except re.error:  # such as of [z-a]
        return None
    return None if end else step


def search(step: Step, text: str) -> bool:
    """Say whether a pattern is found anywhere in a text.

    Args:
        step: as `read` returns it.
        text: of LONGEST characters at most, or it takes long.
    """
    return bool(step(text, {*range(len(text) + 1)}))


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[Step, str]:
    """Read up to the end of a group, or of all; return what ends it, too."""
    rows: list[list[Step]] = [[]]
    for token in tokens:
        sign = token["sign"]
        if sign == ")":
            return partial(_any, rows), sign
        if sign == "|":
            rows.append([])
        elif sign == "(":
            step, end = _alternatives(tokens)
            if not end:
                raise re.error("a group has no end")
            rows[-1].append(step)
        else:
            rows[-1].append(_at(sign) if sign else _repeated(re.compile(token["one"], re.ASCII), token["times"]))
    return partial(_any, rows), ""


def _any(rows: list[list[Step]], text: str, places: set[int]) -> set[int]:
    found: set[int] = set()
    for row in rows:
        reached = places
        for step in row:
            reached = step(text, reached)
        found |= reached
    return found


def _at(sign: str) -> Step:
    return lambda text, places: places & {0 if sign == "^" else len(text)}


def _repeated(one: re.Pattern[str], times: str) -> Step:
    """Return the step of a letter or class, and of ?, * or + after it."""

    def run(text: str, places: set[int]) -> set[int]:
        found = {place + 1 for place in places if one.match(text, place)}
        if times in ("*", "+"):
            for place in range(len(text)):
                if place in found and one.match(text, place):
                    found.add(place + 1)
        return found if times in ("", "+") else found | places

    return run
