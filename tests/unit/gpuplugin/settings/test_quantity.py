from __future__ import annotations

from fractions import Fraction

import pytest

from gpuplugin.settings import quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *(("0", 0), ("10Gi", 10 << 30), ("1.5Ki", 1536), ("1E", 10**18), ("1e3", 1000), ("1E-1", Fraction(1, 10))),
        *(("500m", Fraction(1, 2)), ("+1k", 1000), ("-1", -1), (".5", Fraction(1, 2)), ("5.", 5), ("8Ei", 1 << 63)),
        *((text, None) for text in ("", "Gi", "1gi", "1 Gi", "1Gi ", "0x1", "\u0661", "1e", "1e100", ".", "9" * 21)),
    ],
)
def test_amounts(text: str, amount: Fraction | None) -> None:
    assert quantity.parse(text) == amount
