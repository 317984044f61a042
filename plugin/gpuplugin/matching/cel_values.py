"""Values of CEL as selectors meet them: quantities are fractions, versions tuples; and the methods that they have.

As in cel-go and Kubernetes' libraries for it (apiserver's pkg/cel/library). Out of scope: the language (cel.py).
"""

from __future__ import annotations

import operator
import re
import string
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gpuplugin.settings import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

DYN, BOOL, INT, STRING, NULL, QUANTITY, SEMVER = "dyn", "bool", "int", "string", "null", "quantity", "semver"  # types
KINDS = {bool: BOOL, int: INT, str: STRING, type(None): NULL, Fraction: QUANTITY, tuple: SEMVER}
NO_OVERLOAD = "no such overload"
QUANTIFIERS = 4  # of a pattern, for it may be tried from each of its text's 64 characters
_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase
_VERSION = re.compile(r"\.".join(["(0|[1-9][0-9]{0,8})"] * 3), re.ASCII)
# Of RE2's language what Python's means the same by: plain groups, and at most one of ?*+ after a letter or class.
_LETTER = r"[\w/:;,@#%&=<>~! -]|\."
_PATTERN = re.compile(rf"(?:(?:{_LETTER}|\[\^?(?:[\w./: ](?:-\w)?)+\])[?*+]?|[|^$)]|\((?!\?))*", re.ASCII)


class UnsureError(Exception):
    """It is not known here what Kubernetes makes of this."""


class FailsError(Exception):
    """Evaluation ends with this error, and with it the scheduling of the claim."""


def need(condition: object, what: str) -> None:
    """Raise UnsureError of something unless a condition holds."""
    if not condition:
        raise UnsureError(what)


def amount(text: str) -> Fraction:
    """Read a quantity; raises UnsureError of what is none, and of one that Kubernetes rounds."""
    found = quantity.parse(text)
    if found is None or (found * 10**9).denominator != 1 or abs(found) >= 1 << 63:
        raise UnsureError(f"quantity('{text}')")
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


def pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression; raises UnsureError of one that RE2 may understand in another way."""
    try:
        need(_PATTERN.fullmatch(text) and sum(map(text.count, "?*+")) <= QUANTIFIERS, f"matches('{text}')")
        return re.compile(text.replace("$", r"\Z"), re.ASCII)
    except re.error:
        raise UnsureError(f"matches('{text}')") from None


# By name and number of arguments, which are of the receiver's type: types of that, type of the result, function.
METHODS: dict[tuple[str, int], tuple[tuple[str, ...], str, Callable[..., Any]]] = {
    ("startsWith", 1): ((STRING,), BOOL, str.startswith),
    ("endsWith", 1): ((STRING,), BOOL, str.endswith),
    ("contains", 1): ((STRING,), BOOL, operator.contains),
    ("matches", 1): ((STRING,), BOOL, lambda text, part: bool(pattern(part).search(text))),
    ("lowerAscii", 0): ((STRING,), STRING, lambda text: text.translate(str.maketrans(_UPPER, _LOWER))),
    ("upperAscii", 0): ((STRING,), STRING, lambda text: text.translate(str.maketrans(_LOWER, _UPPER))),
    ("compareTo", 1): ((QUANTITY, SEMVER), INT, lambda one, other: (one > other) - (one < other)),
    ("isGreaterThan", 1): ((QUANTITY, SEMVER), BOOL, operator.gt),
    ("isLessThan", 1): ((QUANTITY, SEMVER), BOOL, operator.lt),
}
