"""What doctor says fixes a fault is done in the state that has it, and doctor then says that all is well.

A command is run by a shell as it stands in the finding. A sentence is done by hands.py, and the command at its end,
behind "; then ", run. Nothing else is done to the host. A fault whose fix nobody tries fails the last tests here.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpushim import doctor
from gpushim.doctor import (
    Finding,
    check_cdi,
    check_device_nodes,
    check_driver,
    check_grants,
    check_host,
    check_selinux,
    check_state,
    checks,
)
from unit.gpushim.doctor import hands
from unit.gpushim.doctor.fault import State
from unit.gpushim.doctor.general_states import BY_NAME, STATES
from unit.gpushim.doctor.patient import REPOSITORY, Patient

pytestmark = pytest.mark.slow
MODULES = (check_driver, check_device_nodes, check_state, check_host, check_selinux, check_cdi, check_grants)
Site = tuple[str, int]  # file and line of a call of `warning` or `broken`
RELATED = ("state-directory", "snapshot", "cdi-spec", "cdi-files", "cdi-conflicts", "cdi-paths")
RAN: set[str] = set()  # states whose fix was tried
TRIED: set[Site] = set()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Site]:
    """Where findings are made, by their sentences."""
    places: dict[str, Site] = {}

    def make(*fields: Any, **more: Any) -> Finding:
        caller = sys._getframe(2)
        finding = Finding(*fields, **more)
        places[finding.evidence] = (caller.f_code.co_filename, caller.f_lineno)
        return finding

    monkeypatch.setattr(doctor, "Finding", make)
    return places


def done(patient: Patient, fix: str, state: State) -> None:
    """Do what a fix says."""
    command = fix
    folder = hands.programs(patient)
    if state.by:
        state.by(patient)
        command = fix.partition("; then ")[2]
    environment = {"PATH": f"{folder}:{REPOSITORY}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    environment.update(GPUSHIM_CONFIG=patient.config, GPUSHIM_STATE=patient.state)
    ran = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, input="y\n", capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, (command, ran.stderr)
    if state.effect:
        state.effect(patient)
    patient.reread()


@pytest.mark.parametrize("state", STATES, ids=str)
def test_fix(patient: Patient, made: dict[str, Site], state: State) -> None:
    found, check = state.found(patient), state.check
    RAN.add(state.name)
    TRIED.add(made[found.evidence])
    done(patient, found.fix, state)
    after = patient.said(check)
    assert {each.verdict for each in after} == {"ok"}, (found.fix, after)
    if check in RELATED:  # one that undoes another's fix would send people in circles
        assert patient.refresh("--force")[0] == 0
        assert {each.verdict for name in RELATED for each in patient.said(name)} <= {"ok", "skipped"}


def sites() -> Iterator[tuple[str, int, int, str]]:
    """List where general checks say that something is wrong: file, first and last line, and its text there.

    What only an ordinary user meets is tried in test_unseen.py.
    """
    others = {check.__name__ for name, check in checks.GENERAL.items() if name.startswith("nvidia-")}
    trees = [(module, tree) for module in MODULES for tree in ast.parse(inspect.getsource(module)).body]
    for module, tree in trees:
        for call in ast.walk(tree) if getattr(tree, "name", "") not in others else ():
            if isinstance(call, ast.Call) and {"warning", "broken"} & {*names(call.func)}:
                if ast.unparse(call.args[-1]) == "seen.AS_ROOT":
                    continue
                yield str(module.__file__), call.lineno, call.end_lineno or 0, ast.unparse(call.args[0])


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_every_finding_has_a_state_whose_fix_is_tried() -> None:
    """After all the others: what they have not met."""
    if {*BY_NAME} - RAN:
        pytest.skip("only some of the states were tried")
    lost = [
        f"{place}:{first}: {text}"
        for place, first, last, text in sites()
        if not any(place == there and first <= line <= last for there, line in TRIED)
    ]
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize(
    ("name", "begins"),
    [("cache_of_before", "ldconfig -r"), ("libraries_where_the_loader_does_not_look", "echo /usr/lib/")],
)
def test_a_directory_is_added_only_where_the_loader_does_not_know_it(
    patient: Patient, name: str, begins: str
) -> None:
    assert BY_NAME[name].found(patient).fix.startswith(begins)
