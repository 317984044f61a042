"""The page shows what the command prints."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from gpushim import doctor
from gpushim.cli.doctor import doctor as command
from unit.gpushim.doctor.patient import NVIDIA_HOOK, REPOSITORY, Patient

PAGE = REPOSITORY / "docs/doctor.md"


def test_the_example(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(patient.top / "usr/bin" / NVIDIA_HOOK)
    os.chmod(patient.gpus.node("nvidia-uvm"), 0o600)
    patient.refreshed()
    patient.host.named = ("docker",)
    monkeypatch.setattr(doctor, "look", lambda named: patient.host)
    printed = CliRunner().invoke(command, ["docker"]).output.replace(patient.root, "")
    assert f"$ gpushim doctor docker\n{printed}```" in PAGE.read_text()
