"""Regular expressions: Python's own search, which can take long, is what they are held against."""

from __future__ import annotations

import random
import re

import pytest

from gpuplugin.matching import patterns

PARTS = ["a", "b", ".", r"\.", "[ab]", "[^a]", "[a-b]", "*", "+", "?", "|", "(", ")", "^", "$"]
TEXTS = ["", "a", "b", ".", "ab", "ba", "aab", "b.a", "abab"]


def test_what_is_found_is_what_python_finds() -> None:
    draw, known = random.Random(7), 0
    for _ in range(3000):
        text = "".join(draw.choices(PARTS, k=draw.randint(0, 8)))
        step = patterns.read(text)
        if step is None:
            continue
        known += 1
        for one in TEXTS:
            assert patterns.search(step, one) is bool(re.search(text.replace("$", r"\Z"), one)), (text, one)
    assert known > 500


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "(a", "*", "a**", "a*?", "(a)*", "a{2}", "(?i)a", "[", "[]", "[z-a]", r"\d", "[[:alpha:]]"],
)
def test_what_is_not_known_here(text: str) -> None:
    assert patterns.read(text) is None
