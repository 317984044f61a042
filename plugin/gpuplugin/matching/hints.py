"""What may be meant by a selector that fails, or is not known here: clauses for people, which decide nothing.

Out of scope: what selectors do (cel.py).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gpuplugin.settings.forms import find_meant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Names = Mapping[str, Collection[str]]  # by domain

# Of other languages.
INSTEAD = {"=": "write ==", "and": "write &&", "or": "write ||", "not": "write !", "True": "write true"}
INSTEAD.update({"False": "write false", "None": "write null", "&": "write &&", "|": "write ||"})
BY_NUMBER = {"index": "uuid", "minor": "uuid"}  # what other drivers have, and boots change
_AMOUNT = re.compile("([0-9.]{1,20}) ?([KMGTPE])i?[bB]", re.ASCII | re.IGNORECASE)
_ORDERED = {"quantity": "quantity('40Gi')", "semver": "semver('8.0.0')"}  # by their types


def key(name: str, field: str, domain: str, device: Mapping[str, Names]) -> str:
    """Say in parentheses what a name may mean that a device lacks; "" if nothing is like it.

    Args:
        name: of an attribute or capacity.
        field: attributes or capacity.
        domain: where it was looked for; "" if that is not known.
        device: its names by field and domain.
    """
    if domain and domain not in device[field]:
        near = _near(domain, (*device[field],))
        return f" (no device here has the domain {domain}" + f"; is {near} meant?" * bool(near) + ")"
    other = "capacity" if field == "attributes" else "attributes"
    for place, found in ((each, device[each]) for each in (other, field)):
        for one, names in found.items():
            if name in names and (not domain or (place, one) != (field, domain)):
                return f" (is device.{place}['{one}'].{name} meant?)"
    near = BY_NUMBER.get(name) or _near(name, (*device[field].get(domain, ()),))
    return f" (is {near} meant?)" if near else ""


def compared(sign: str, types: Collection[str]) -> str:
    """Say how values are compared that have a sign of another type between them."""
    for type_, literal in _ORDERED.items():
        if type_ in types:
            return f"write {literal}" if sign in ("==", "!=") else f"write .compareTo({literal}) {sign} 0"
    by_domain = any(one.startswith("names ") for one in types)
    return "a domain comes first, as in device.attributes['gpu.nvidia.com'].type" if by_domain else ""


def quantity(text: str) -> str:
    """Say how a quantity is written that has the unit of another notation."""
    found = _AMOUNT.fullmatch(text)
    if not found:
        return ""
    number, unit = found[1], found[2].upper()
    return f"write {number}{'k' if unit == 'K' else unit} or {number}{unit}i"


@lru_cache(maxsize=256)  # each device asks
def _near(name: str, known: tuple[str, ...]) -> str:
    by_letters = {one.lower(): one for one in known}
    return by_letters.get(find_meant(name.lower(), [*by_letters]), "")
