"""Nodes of the driver's that should be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.inventory import procfs
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
