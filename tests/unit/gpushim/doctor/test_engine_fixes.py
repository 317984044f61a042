"""Each fix that a check of an engine names works in the state that produced it: the doctor then says ok.

Where systemd runs and, for what is restarted, where it does not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushim.doctor import Finding, checks
from unit.gpushim.doctor.administrator import Administrator
from unit.gpushim.doctor.engine_states import STATES
from unit.gpushim.doctor.fault import State
from unit.gpushim.doctor.patient import Patient

pytestmark = pytest.mark.slow
ROUNDS = 6  # of "what does the doctor say now"; a fix may bring a restart to light
BY_NAME = {state.name: state for state in STATES}
# States whose fixes start or restart something, by way of each engine.
RESTARTED = (
    *(
        "dockerd_is_deaf",
        "dockerd_is_down",
        "dockerd_has_not_read_it",
        "runtime_in_no_file",
        "hook_is_not_on_that_path",
    ),
    *("docker_cdi_is_off", "handler_is_missing", "containerd_is_older", "k3s_forgets", "k3s_has_not_read_it"),
)


def without_systemd(patient: Patient, init: str) -> None:
    shutil.rmtree(patient.top / "run/systemd")
    patient.host.engines = [replace(each, unit="") for each in patient.host.engines]
    for name, pid in (("docker", 40), ("containerd", 41)) if init == "sysvinit" else ():
        patient.script(f"etc/init.d/{name}", "exit 0")
        patient.write(f"run/{name}-ssd.pid", str(pid))
    patient.script("usr/sbin/service", "exit 0")


@pytest.fixture
def administrator(unlisted: Patient) -> Iterator[Administrator]:
    """One who has a healthy host with systemd, and does what fixes say."""
    with contextlib.ExitStack() as held:
        yield Administrator(unlisted, held)


def bad(patient: Patient, check: str) -> list[Finding]:
    engine = check.partition("-")[0]
    names = checks.ENGINES.get(engine, {check: None})
    found = [replace(each, check=name) for name in names for each in patient.said(name)]
    # What a dockerd in a root of its own cannot do has another way, and no fix.
    return [each for each in found if each.verdict in ("warning", "broken") and not each.fix.endswith("instead")]


def examine(administrator: Administrator, state: State) -> None:
    """Plant a fault, do what its fix says, and whatever else the doctor then says."""
    patient, check = administrator.patient, state.check
    first = state.found(patient)
    administrator.does(first.fix)
    assert first.evidence not in [each.evidence for each in patient.said(check)]
    for _ in range(ROUNDS):
        if found := bad(patient, check):
            administrator.does(found[0].fix)
    assert bad(patient, check) == []


@pytest.mark.parametrize("state", STATES, ids=str)
def test_fix(administrator: Administrator, state: State) -> None:
    examine(administrator, state)


@pytest.mark.parametrize(
    ("check", "absent"),
    [
        ("docker-daemon", "usr/bin/dockerd"),
        ("containerd-daemon", ""),
        ("podman-program", "usr/bin/podman"),
        ("kubernetes-node", "var/lib/kubelet"),
    ],
)
def test_fix_of_an_engine_that_was_named_and_is_not_there(
    administrator: Administrator, check: str, absent: str
) -> None:
    patient, engine = administrator.patient, check.partition("-")[0]
    patient.host.engines.clear()
    if absent:
        os.rename(patient.top / absent, patient.top / "gone")
    (found,) = patient.said(check, engine)
    assert found.verdict == "broken"
    administrator.does(found.fix)
    assert [each.verdict for each in patient.said(check, engine)] == ["ok"]


@pytest.mark.parametrize("init", ["sysvinit", "by hand"])
@pytest.mark.parametrize("name", RESTARTED)
def test_fix_without_systemd(administrator: Administrator, init: str, name: str) -> None:
    without_systemd(administrator.patient, init)
    examine(administrator, BY_NAME[name])
