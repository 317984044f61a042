"""Quantities as Kubernetes writes them, such as 10Gi, 500m and 1e3 (apimachinery's pkg/api/resource).

Out of scope: what amounts make sense, which whoever reads one says.
"""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))"
    r"(?:[eE](?P<power>[+-]?[0-9]{1,2})|(?P<unit>[KMGTPE]i|[numkMGTPE])?)",
    re.ASCII,
)
_UNITS = {name: Fraction(1000) ** power for name, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6))}
_UNITS.update({f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", 1)})


def parse(text: str) -> Fraction | None:
    """Return what a quantity amounts to; None if it is none.

    Args:
        text: such as 10Gi.
    """
    found = _FORM.fullmatch(text)
    if not found:
        return None
    return Fraction(found["number"]) * Fraction(10) ** int(found["power"] or 0) * _UNITS.get(found["unit"], 1)
