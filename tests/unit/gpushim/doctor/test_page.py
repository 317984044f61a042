"""The page shows what the command prints."""

from __future__ import annotations

import os
import re

import pytest
from click.testing import CliRunner

from gpushim import doctor
from gpushim.cli.doctor import doctor as command
from unit.gpushim.doctor.patient import NVIDIA_HOOK, REPOSITORY, Patient

PAGE = REPOSITORY / "docs/doctor.md"


def plain(output: str, patient: Patient) -> str:
    """Take out what is another one on each machine, and the alignment that depends on it."""
    for old, new in (
        (f"{REPOSITORY}/shim", "/usr/lib/gpushim"),
        (f"{REPOSITORY}/bin", "/usr/bin"),
        (f"{patient.state}/cdi", "/var/run/cdi"),
        (patient.state, "/run/gpushim"),
        (patient.config, "/etc/gpushim/config.toml"),
        (str(patient.folder / "etc-cdi"), "/etc/cdi"),
        (patient.root, ""),
    ):
        output = output.replace(old, new)
    output = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "2026-11-20T08:00:00Z", output)
    return re.sub(r"(python3 is) [\d.]+", r"\1 3.11.2", output)


def test_the_example(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(patient.top / "usr/bin" / NVIDIA_HOOK)
    os.chmod(patient.gpus.node("nvidia-uvm"), 0o600)
    patient.refreshed()
    patient.host.named = ("docker",)
    monkeypatch.setattr(doctor, "look", lambda named: patient.host)
    monkeypatch.setattr("gpushim.doctor.checks.state.engines.installed", lambda name: f"{REPOSITORY}/bin/{name}")
    printed = plain(CliRunner().invoke(command, ["docker", "--all"]).output, patient)
    assert f"$ gpushim doctor docker --all\n{printed}```" in PAGE.read_text()
