"""Values of CEL as selectors meet them: quantities are fractions, versions tuples; and the methods that they have.

As in cel-go and Kubernetes' libraries for it (apiserver's pkg/cel/library). Out of scope: the language (cel.py).
"""

from __future__ import annotations

import operator
import re
import string
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gpuplugin.matching import hints, patterns
from gpuplugin.settings import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

DYN, BOOL, INT, STRING, NULL, QUANTITY, SEMVER = "dyn", "bool", "int", "string", "null", "quantity", "semver"  # types
KINDS = {bool: BOOL, int: INT, str: STRING, type(None): NULL, Fraction: QUANTITY, tuple: SEMVER}
NO_OVERLOAD = "no such overload"
_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase
_VERSION = re.compile(r"\.".join(["(0|[1-9][0-9]{0,8})"] * 3), re.ASCII)


class UnsureError(Exception):
    """It is not known here what Kubernetes makes of this.

    Attributes:
        hint: what may be meant, a clause; or "".
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class FailsError(Exception):
    """Evaluation ends with this error, and with it the scheduling of the claim."""


def need(condition: object, what: str, hint: str = "") -> None:
    """Raise UnsureError of something unless a condition holds."""
    if not condition:
        raise UnsureError(what, hint)


def amount(text: str) -> Fraction:
    """Read a quantity; raises UnsureError of what is none, and of one that Kubernetes rounds."""
    found = quantity.parse(text)
    if found is None or (found * 10**9).denominator != 1 or abs(found) >= 1 << 63:
        raise UnsureError(f"quantity('{text}')", hints.quantity(text))
    return found


def version(text: str) -> tuple[int, ...]:
    """Read a version; raises UnsureError of one that has not three numbers alone."""
    found = _VERSION.fullmatch(text)
    if not found:
        raise UnsureError(f"semver('{text}')")
    return (*map(int, found.groups()),)


def equal(one: Any, other: Any) -> bool:
    """Say whether two values are equal; raises FailsError where a quantity or version meets something else."""
    first, second = KINDS[type(one)], KINDS[type(other)]
    if first != second and first in (QUANTITY, SEMVER) and second != NULL:
        raise FailsError(NO_OVERLOAD)
    return first == second and bool(one == other)


def pattern(text: str) -> patterns.Step:
    """Read a regular expression; raises UnsureError of one that RE2 may understand in another way."""
    found = patterns.read(text)
    if found is None:
        raise UnsureError(f"matches('{text}')")
    return found


def searched(text: str, part: str) -> bool:
    """Say whether a regular expression is found in a text; raises UnsureError of a text that is too long for that."""
    need(len(text) <= patterns.LONGEST, "matches() of a long text")
    return patterns.search(pattern(part), text)


# By name and number of arguments, which are of the receiver's type: types of that, type of the result, function.
METHODS: dict[tuple[str, int], tuple[tuple[str, ...], str, Callable[..., Any]]] = {
    ("startsWith", 1): ((STRING,), BOOL, str.startswith),
    ("endsWith", 1): ((STRING,), BOOL, str.endswith),
    ("contains", 1): ((STRING,), BOOL, operator.contains),
    ("matches", 1): ((STRING,), BOOL, searched),
    ("lowerAscii", 0): ((STRING,), STRING, lambda text: text.translate(str.maketrans(_UPPER, _LOWER))),
    ("upperAscii", 0): ((STRING,), STRING, lambda text: text.translate(str.maketrans(_LOWER, _UPPER))),
    ("compareTo", 1): ((QUANTITY, SEMVER), INT, lambda one, other: (one > other) - (one < other)),
    ("isGreaterThan", 1): ((QUANTITY, SEMVER), BOOL, operator.gt),
    ("isLessThan", 1): ((QUANTITY, SEMVER), BOOL, operator.lt),
}
