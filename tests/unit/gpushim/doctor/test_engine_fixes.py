"""Each fix that a check of an engine names works in the state that produced it: the doctor then says ok.

Where systemd runs and where it does not.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpushim.doctor import Finding, checks
from unit.gpushim.doctor.administrator import Administrator
from unit.gpushim.doctor.engine_states import STATES
from unit.gpushim.doctor.patient import Patient

ROUNDS = 6  # of "what does the doctor say now"; a fix may bring a restart to light
INITS = ("systemd", "sysvinit", "by hand")


def without_systemd(patient: Patient, init: str) -> None:
    shutil.rmtree(patient.top / "run/systemd")
    patient.host.engines = [replace(each, unit="") for each in patient.host.engines]
    for name, pid in (("docker", 40), ("containerd", 41)) if init == "sysvinit" else ():
        patient.script(f"etc/init.d/{name}", "exit 0")
        patient.write(f"run/{name}-ssd.pid", str(pid))
    patient.script("usr/sbin/service", "exit 0")


@pytest.fixture(params=INITS)
def administrator(request: pytest.FixtureRequest, unlisted: Patient) -> Iterator[Administrator]:
    """One who has a healthy host, of one init or another, and does what fixes say."""
    if request.param != "systemd":
        without_systemd(unlisted, request.param)
    with contextlib.ExitStack() as held:
        yield Administrator(unlisted, held)


def bad(patient: Patient, check: str) -> list[Finding]:
    engine = check.partition("-")[0]
    names = checks.ENGINES.get(engine, {check: None})
    found = [replace(each, check=name) for name in names for each in patient.said(name)]
    return [each for each in found if each.verdict in ("warning", "broken")]


@pytest.mark.parametrize(("check", "verdict", "evidence", "plant"), STATES, ids=[each[3].__name__ for each in STATES])
def test_fix(
    administrator: Administrator, check: str, verdict: str, evidence: str, plant: Callable[[Patient], None]
) -> None:
    patient = administrator.patient
    plant(patient)
    first = [each for each in patient.said(check) if each.verdict == verdict and evidence in each.evidence]
    assert first or (check == "nvidia-units" and not administrator.engines[0].unit), patient.said(check)
    for each in first:
        administrator.does(each.fix)
    assert [each for each in patient.said(check) if each.evidence in [one.evidence for one in first]] == []
    for _ in range(ROUNDS):
        if found := bad(patient, check):
            administrator.does(found[0].fix)
    assert bad(patient, check) == []
