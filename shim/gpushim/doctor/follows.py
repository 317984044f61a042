"""Findings that follow from another one: they name it, and lose their fix, which could not work before it.

Out of scope: what the checks look at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpushim.doctor import BROKEN, check_docker

if TYPE_CHECKING:
    from gpushim.doctor import Finding

# A broken check, with a word of its finding; the beginning of the checks that follow it, with words of their fixes.
FIRST = (
    (
        "docker-runtime",
        check_docker.WOULD_NOT,
        "docker-",
        ("",),
    ),  # a restart, and what configure writes, would end Docker
    ("programs", "", "", ("gpushim configure", "gpushim-hook")),
    ("programs", "", "cdi-paths", ("gpushim refresh",)),  # it writes the same hook again
    ("driver-libraries", "reboot", "library-cache", ("ldconfig",)),
)


def linked(found: list[Finding]) -> list[Finding]:
    """Remove the fixes that must wait for the fix of another finding."""
    return [_after(one, found) for one in found]


def _after(one: Finding, found: list[Finding]) -> Finding:
    for check, word, begins, fixes in FIRST:
        if check == one.check or not one.check.startswith(begins) or not any(each in one.fix for each in fixes):
            continue
        if one.fix and any(
            each.check == check and each.verdict == BROKEN and word in each.evidence + each.fix for each in found
        ):
            return replace(one, evidence=f"{one.evidence}; {check} comes first", fix="")
    return one
