"""Tolerations of a request, as the API server takes them, and which taints keep devices from it all the same.

Pure. Out of scope: which taints there are (gpuplugin.dra.taints).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuplugin.settings.forms import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.matching.fields import Form

KEEPING = ("NoSchedule", "NoExecute")  # effects of taints
_FIELDS = ("key", "operator", "value", "effect", "tolerationSeconds")
_VALUE = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")  # of a label
_KEY = re.compile(f"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_VALUE.pattern}")
_NONE = None, ""


def read(row: Any, where: str, form: Form) -> Mapping[str, Any]:
    """Return a toleration; `form` gets what is wrong with it.

    Args:
        row: it.
        where: it stands, for a sentence.
        form: of the claim.
    """
    found = form.object(row, where, _FIELDS)
    key, operator, value, effect, seconds = map(found.get, _FIELDS)
    for name, well, what in (
        ("key", key in _NONE or _is(key, _KEY), "a taint's, as gpu.nvidia.com/xid"),
        ("operator", operator in (*_NONE, "Equal", "Exists"), "Equal or Exists"),
        (
            "value",
            value in _NONE or (_is(value, _VALUE) and operator != "Exists"),
            "a taint's in quotes, none with Exists",
        ),
        ("effect", effect in (*_NONE, *KEEPING, "None"), " or ".join(KEEPING)),
        ("tolerationSeconds", seconds is None or type(seconds) is int, "a number, without quotes"),
    ):
        if not well:
            form.wrong.append(f"{where}.{name} is {show(found.get(name))}; write {what}")
    return found


def untolerated(
    tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """Return the taints that keep a device from a request."""
    return [
        taint
        for taint in taints
        if taint["effect"] in KEEPING and not any(_tolerates(one, taint) for one in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect not in ("", taint["effect"]) or key not in ("", taint["key"]):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == taint.get("value", "")


def _is(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))
