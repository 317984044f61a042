"""Whether a device matches a request: yes, no, or not known here.

Pure. Out of scope: taints (tolerations.py), what a claim gets as a whole (fitting.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.matching import cel
from gpuplugin.matching.cel_values import FailsError, UnsureError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.matching.manifests import Class, Request

YES, NO, UNSURE, FAILS = "yes", "no", "cannot tell", "fails"
TEXT = 400  # characters of a selector that a clause has


class Verdict(NamedTuple):
    """Whether a device matches.

    Attributes:
        answer: YES, NO, UNSURE, or FAILS: the scheduler ends with an error when it comes to this device.
        why: a clause.
        doubt: what of the request is not known here, and may be an error, a clause; or "".
    """

    answer: str
    why: str
    doubt: str = ""


def verdict(request: Request, found: Class, driver: str, body: Mapping[str, Any]) -> Verdict:
    """Say whether a device matches a request; selectors of the class come first.

    Args:
        request: of a claim.
        found: its class.
        driver: of the device.
        body: the device, in the form of resource.k8s.io/v1.
    """
    unsure = [*found.unsure]
    for text in (*found.selectors, *request.selectors):
        try:
            holds, seen = cel.matches(text, driver, body)
        except UnsureError as error:
            more = f"; {error.hint}" if error.hint else ""
            unsure.append(f"gpushim does not know {_cut(str(error))} in {_cut(text)}{more}")
        except FailsError as error:
            why = f"{_cut(str(error))}, in {_cut(text)}"
            if not unsure:
                return Verdict(FAILS, why)
            unsure.append(why)
        else:
            if not holds:
                return Verdict(NO, f"{_cut(text)} is false{_shown(seen, body)}", unsure[0] if unsure else "")
    return Verdict(UNSURE, unsure[0], unsure[0]) if unsure else Verdict(YES, "")


def _cut(text: str) -> str:
    """Return what a clause has of a text: each device has one."""
    return text if len(text) <= TEXT else f"{text[:TEXT]}..."


def _shown(seen: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """Say what a device has, as the API has it."""
    values = {}
    for field in ("attributes", "capacity"):
        for name, one in body[field].items():
            ((_, value),) = one.items()
            values[name.rpartition("/")[2]] = str(value).lower() if isinstance(value, bool) else str(value)
    parts = [f"its {name} is {values[name]}" for name in seen if name in values]
    return f": {' and '.join(parts)}" if parts else ""
