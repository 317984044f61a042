"""Two CDI specs with the same devices: what doctor names as the fix is tried, and doctor then finds nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from unit.gpushim.doctor.cdi_states import SPEC
from unit.gpushim.doctor.patient import Patient

pytestmark = pytest.mark.slow
CHECKS = ("cdi-spec", "cdi-conflicts", "cdi-files", "cdi-paths")


@pytest.fixture
def theirs(patient: Patient) -> Path:
    """A spec that NVIDIA's unit writes beside ours."""
    path = Path(patient.state, "cdi/nvidia.yaml")
    path.write_text(SPEC % "/dev/null")
    return path


def fixed(patient: Patient) -> None:
    """Do what doctor says."""
    (found,) = patient.said("cdi-conflicts")
    assert (found.verdict, "engines refuse that device" in found.evidence) == ("broken", True)
    if found.fix == "gpushim refresh":
        patient.refreshed()
    else:
        subprocess.run(["/bin/sh", "-c", found.fix], check=True)
    assert [one.verdict for check in CHECKS for one in patient.said(check)] == ["ok"] * len(CHECKS)


def test_ours_goes(patient: Patient, theirs: Path) -> None:
    fixed(patient)
    assert [path.name for path in theirs.parent.iterdir()] == ["nvidia.yaml"]


def test_ours_comes_back(patient: Patient, theirs: Path) -> None:
    fixed(patient)
    theirs.unlink()
    patient.refreshed()
    assert [path.name for path in theirs.parent.iterdir()] == ["nvidia.com-gpu.json"]


def test_one_that_we_have_not_written(patient: Patient, theirs: Path) -> None:
    Path(patient.state, "specs").unlink()
    fixed(patient)
    assert len(list(theirs.parent.iterdir())) == 1
