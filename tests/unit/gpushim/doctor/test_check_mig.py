"""GPUs in MIG mode: what the doctor says of them, and that its fix helps."""

from __future__ import annotations

from typing import Any

import pytest

from gpushim.doctor import Finding, check_mig, checks
from unit.gpushim.doctor.patient import Patient


def divide(patient: Patient, devices: Any) -> None:
    """Switch MIG mode on, with these instances; None switches it off."""
    patient.gpus.set_mig(1, devices or [])
    patient.gpus.gpus[1].mig_mode = (int(devices is not None),) * 2


def looked(patient: Patient) -> list[Finding]:
    patient.gpus.update()
    assert patient.refresh("--force")[0] == 0  # as `gpushim refresh` does
    return list(check_mig.instances(patient.host))


@pytest.mark.parametrize(
    ("devices", "verdicts", "words"),
    [
        (None, ["ok"], "no GPU is in MIG mode"),
        (["3g.20gb", "1g.5gb"], ["ok"], "all gives the MIG instances 1:0, 1:1; where GPU 1 is named"),
        ([], ["warning"], "GPU 1 is in MIG mode and has no instance"),
    ],
)
def test_what_is_said(patient: Patient, devices: Any, verdicts: list[str], words: str) -> None:
    if devices is not None:
        divide(patient, devices)
    found = looked(patient)
    assert [each.verdict for each in found] == verdicts
    assert words in found[0].evidence


def test_a_gpu_that_is_cut_on_demand_may_be_empty(patient: Patient) -> None:
    divide(patient, [])
    section = patient.host.settings["device-plugin"]
    section.update({"fronts": ["dra"], "on-demand": [patient.gpus.gpus[1].uuid]})
    assert [(each.verdict, each.evidence) for each in looked(patient)] == [
        ("ok", "no GPU is in MIG mode, but for those of on-demand")
    ]
    for key, value in (("on-demand", ["0"]), ("on-demand", ["1-0"]), ("fronts", ["device-plugin"])):
        section.update({"on-demand": ["1"], key: value})  # type: ignore[misc]
        assert [each.verdict for each in looked(patient)] == ["warning"]


def test_a_stale_snapshot_says_nothing(patient: Patient) -> None:
    patient.gpus.remove_node("nvidia-uvm")
    assert [each.verdict for each in check_mig.instances(patient.host)] == ["skipped"]


def test_both_ways_out_of_a_gpu_without_instances(patient: Patient) -> None:
    for out in (["1g.5gb"], None):
        divide(patient, [])
        (found,) = looked(patient)
        assert "-cgi PROFILE -C" in found.fix
        assert f"-i {patient.gpus.gpus[1].uuid} -mig 0" in found.fix
        divide(patient, out)
        assert [each.verdict for each in looked(patient)] == ["ok"]
    assert checks.table(())["mig"] is check_mig.instances
