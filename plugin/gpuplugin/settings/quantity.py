"""Quantities as Kubernetes writes them, such as 10Gi, 500m and 1e3 (apimachinery's pkg/api/resource)."""

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
    """Return the amount of a quantity such as 10Gi; None if it is none."""
    match = _FORM.fullmatch(text)
    if not match:
        return None
    return Fraction(match["number"]) * Fraction(10) ** int(match["power"] or 0) * _UNITS.get(match["unit"], 1)
