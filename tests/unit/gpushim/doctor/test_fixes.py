"""What doctor says fixes a fault is done in the state that has it, and doctor then says that all is well.

A command is run by a shell as it stands in the finding. A sentence is done by hands.py, and the command at its end,
behind "; then ", run. Nothing else is done to the host. A fault whose fix nobody tries fails the last tests here.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gpushim import doctor
from gpushim.doctor import Finding, cdi, checks, driver, grants, host, nodes, state
from unit.gpushim.doctor import hands
from unit.gpushim.doctor.patient import REPOSITORY, Patient
from unit.gpushim.doctor.states import STATES

pytestmark = pytest.mark.slow
MODULES = (driver, nodes, state, host, cdi, grants)
NAMES = [plant.__name__ for *_, plant in STATES]
Site = tuple[str, int]  # file and line of a call of `warning` or `broken`
RAN: set[str] = set()
TRIED: set[Site] = set()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[int, Site]:
    """Where findings are made, by identity."""
    places: dict[int, Site] = {}
    kept = []

    def make(*fields: str) -> Finding:
        caller = sys._getframe(2)
        finding = Finding(*fields)
        kept.append(finding)
        places[id(finding)] = (caller.f_code.co_filename, caller.f_lineno)
        return finding

    monkeypatch.setattr(doctor, "Finding", make)
    return places


def done(patient: Patient, fix: str, name: str) -> None:
    """Do what a fix says."""
    command = fix
    folder = hands.programs(patient)
    if name in hands.SENTENCES:
        hands.SENTENCES[name](patient)
        command = fix.partition("; then ")[2]
    environment = {"PATH": f"{folder}:{REPOSITORY}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    environment.update(GPUSHIM_CONFIG=patient.config, GPUSHIM_STATE=patient.state)
    ran = subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (command, ran.stderr)
    hands.EFFECTS.get(name, lambda patient: None)(patient)
    patient.reread()


@pytest.mark.parametrize(("check", "verdict", "evidence", "plant"), STATES, ids=NAMES)
def test_fix(
    patient: Patient,
    made: dict[int, Site],
    check: str,
    verdict: str,
    evidence: str,
    plant: Callable[[Patient], None],
) -> None:
    plant(patient)
    said = list(checks.GENERAL[check](patient.host))
    found = [each for each in said if each.verdict == verdict and evidence in each.evidence]
    assert found, said
    RAN.add(plant.__name__)
    TRIED.update(made[id(each)] for each in found if id(each) in made)
    done(patient, found[0].fix, plant.__name__)
    assert {each.verdict for each in patient.said(check)} == {"ok"}, (found[0].fix, patient.said(check))


def sites() -> Iterator[tuple[str, int, int, str]]:
    """List where general checks say that something is wrong: file, first and last line, and its text there."""
    others = {check.__name__ for name, check in checks.GENERAL.items() if name.startswith("nvidia-")}
    trees = [(module, tree) for module in MODULES for tree in ast.parse(inspect.getsource(module)).body]
    for module, tree in trees:
        for call in ast.walk(tree) if getattr(tree, "name", "") not in others else ():
            if isinstance(call, ast.Call) and {"warning", "broken"} & {*names(call.func)}:
                yield str(module.__file__), call.lineno, call.end_lineno or 0, ast.unparse(call.args[0])


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_every_finding_has_a_state_whose_fix_is_tried() -> None:
    """After all the others: what they have not met."""
    if {*NAMES} - RAN:
        pytest.skip("only some of the states were tried")
    lost = [
        f"{place}:{first}: {text}"
        for place, first, last, text in sites()
        if not any(place == there and first <= line <= last for there, line in TRIED)
    ]
    assert not lost, "\n".join(lost)


def test_every_hand_is_needed() -> None:
    assert {*hands.SENTENCES, *hands.EFFECTS} <= {*NAMES}
