"""Nodes of the driver's that should be there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpushim.inventory import nodes, procfs
from unit.gpushim.doctor.patient import Patient
from unit.gpushim.inventory.machine import told

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("change", [0, 1])
def test_of_a_gpu_whose_calls_hang_the_kernel_is_not_asked(patient: Patient, change: int) -> None:
    """Its words of such a GPU, which have its minor number, hang, too."""
    gpu = patient.gpus.gpus[1]
    told(patient.state, gpu.uuid)
    patient.gpus.remove_node(f"nvidia{gpu.minor}")
    patient.write("proc/driver/nvidia/params", f"ModifyDeviceFiles: {change}\n")
    Path(patient.root, "proc/driver/nvidia/gpus", procfs.sysfs_name(gpu.pci), "information").write_text("")
    [found] = patient.said("device-nodes")
    assert found.verdict == "broken"
    assert found.evidence.endswith(f"/dev/nvidia{gpu.minor} is not there")


def test_what_an_outer_layer_withholds_is_no_defect(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in LXC, where /proc shows all GPUs of the machine."""
    patient.inside = True
    monkeypatch.setattr(nodes, "CONTAINER", patient.config)
    text = Path(patient.config).read_text().replace("[driver]\n", "[driver]\nload-kernel-modules = false\n")
    patient.configure(text)
    patient.gpus.remove_node(f"nvidia{patient.gpus.gpus[1].minor}")
    shutil.rmtree(patient.state)  # it has never had that GPU
    patient.refreshed()
    patient.reread()
    for check in ("device-nodes", "dev-char-links", "nvml", "snapshot"):
        assert [each.verdict for each in patient.said(check)] == ["ok"], patient.said(check)
