"""Values of JSON checked against types: of a file that this plugin has written, and that may be damaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 48  # number of an instance, or seconds, or changes: far more than there are


@cache
def checker(kind: Any) -> Callable[[Any], bool]:
    """Return a function that returns whether a value of JSON is of a type; a KeyError is a member that is missing.

    Args:
        kind: a TypedDict, a dataclass, or what these have members of.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if origin is Union:
        checks = [*map(checker, kinds)]
        return lambda value: any(check(value) for check in checks)
    if origin in (list, dict):
        check_member = checker(kinds[-1])
        return lambda value: (
            type(value) is origin and all(map(check_member, value if origin is list else value.values()))
        )
    if kind in (int, float):
        return lambda value: type(value) in (int, kind) and 0 <= value < LARGEST  # no NaN is
    hints = get_type_hints(kind) if kind not in (str, bool, type(None)) else {}
    if not hints:
        return lambda value: type(value) is kind
    required = getattr(kind, "__required_keys__", hints)
    members = {key: checker(hint) for key, hint in hints.items()}
    return lambda row: all(check(row[key]) for key, check in members.items() if key in required or key in row)
