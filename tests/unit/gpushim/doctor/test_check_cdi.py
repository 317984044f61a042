"""What is wrong with specs: which engines are too old for one, and what one names that is not there, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unit.gpushim.doctor.cdi_states import SPEC
from unit.gpushim.doctor.patient import Patient


@pytest.mark.parametrize(
    ("podman", "cdi", "verdict"),
    [
        ("4.1.0", "0.5.0", "ok"),
        ("4.1.0", "0.6.0", "warning"),
        ("4.5.1", "0.6.0", "warning"),
        ("4.6.0", "0.6.0", "ok"),
        ("5.6.0", "1.0.0", "ok"),
        ("5.6.0", "1.1.0", "warning"),
        ("4.0.3", "1.1.0", "ok"),  # which reads no specs
        ("of tomorrow", "1.1.0", "ok"),
    ],
)
def test_an_engine_reads_specs_up_to_its_version(unlisted: Patient, podman: str, cdi: str, verdict: str) -> None:
    unlisted.host.engines.clear()
    unlisted.script("usr/bin/podman", f"echo podman version {podman}")
    os.makedirs(f"{unlisted.state}/cdi")
    Path(unlisted.state, "cdi/theirs.json").write_text((SPEC % "/dev/null").replace("0.5.0", cdi))
    assert [found.verdict for found in unlisted.said("cdi-versions")] == [verdict]


def test_a_node_that_each_name_of_a_gpu_brings_is_missed_once(patient: Patient) -> None:
    node = f"{patient.gpus.root}/dev/nvidia{patient.gpus.gpus[0].minor}"
    os.unlink(node)
    (finding,) = patient.said("cdi-paths")
    assert (finding.verdict, finding.evidence.count(node)) == ("broken", 1)
