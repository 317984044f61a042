"""A state of a host in which a check finds a fault: rows of the tables in the modules beside this, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpushim.doctor import Finding, check_state, checks
from unit.gpushim.doctor.patient import Patient

Hand = Callable[[Patient], object]


@dataclass(frozen=True)
class State:
    """How a host is spoiled, and what is then found.

    Attributes:
        name: of the state.
        check: that finds it.
        verdict: of the finding.
        evidence: a part of its sentence.
        plant: spoils a healthy host.
        by: does what the fix says that no command does; None where all of it is a command.
        effect: does what a program does that only acts as if.
    """

    name: str
    check: str
    verdict: str
    evidence: str
    plant: Hand
    by: Hand | None = None
    effect: Hand | None = None

    def __str__(self) -> str:
        return self.name

    def found(self, patient: Patient) -> Finding:
        """Spoil a host, and return what the check then finds."""
        self.plant(patient)
        said = patient.said(self.check)
        found = [each for each in said if each.verdict == self.verdict and self.evidence in each.evidence]
        assert found, said
        assert promised(found[0]), found[0]
        return found[0]


def promised(finding: Finding) -> bool:
    """Return whether what a fix refers to is there: advice in the evidence, or a check of that name."""
    named = re.findall(r"[Dd]o what ([a-z-]+) says", finding.fix)
    if "next step" in finding.fix or "the sentence" in finding.fix:
        return False
    everything = {*checks.GENERAL, *(name for each in checks.ENGINES.values() for name in each)}
    return all(check_state.ADVICE.search(finding.evidence) if name == "it" else name in everything for name in named)


def into(states: list[State]) -> Callable[..., Callable[[Hand], Hand]]:
    """Return a decorator that makes a state of a function: its name, and what spoils the host."""

    def fault(
        check: str, verdict: str, evidence: str, by: Hand | None = None, effect: Hand | None = None
    ) -> Callable[[Hand], Hand]:
        def keep(plant: Hand) -> Hand:
            states.append(State(plant.__name__, check, verdict, evidence, plant, by, effect))
            return plant

        return keep

    return fault
