"""Which GPU a claim's device is: as NVIDIA's DRA driver names it, as our CDI spec does, or by nothing known."""

from __future__ import annotations

import pytest

from gpushim.containers.kubelet import Claim, which
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

HOST = snapshot([gpu(0, minor=3), gpu(1, mig=True, minor=0)], [mig(1, 0), mig(1, 1)])
OWN, FOREIGN = "gpu.nvidia.com", "gpu.example.com"
ALL = {uuid(0), uuid(1)}


@pytest.mark.parametrize(
    ("driver", "device", "cdi", "expected"),
    [
        (OWN, "gpu-3", ["k8s.gpu.nvidia.com/claim=c0ffee-gpu-3"], {uuid(0)}),
        (OWN, "gpu-0-mig-1g5gb-19-4", [], {uuid(1)}),
        (OWN, uuid(1).lower(), [], {uuid(1)}),
        (OWN, f"mig-{uuid(17, 'MIG')[4:]}", [], {uuid(17, "MIG")}),
        (OWN, "gpu-9", [], None),
        (OWN, "gpu-1", ["nvidia.com/gpu=0"], {uuid(0)}),
        (OWN, "gpu-3", ["nvidia.com/gpu=all"], ALL),
        (OWN, "something", [f"x.com/y=1-{uuid(0)}"], {uuid(0)}),
        (OWN, "something", [], None),
        (FOREIGN, "gpu-0", ["k8s.gpu.example.com/gpu=gpu-0"], set()),
        (FOREIGN, "gpu-0", ["nvidia.com/gpu=1:0"], {uuid(16, "MIG")}),
        (FOREIGN, "gpu-0", ["nvidia.com/gpu=7"], None),
        (FOREIGN, "gpu-0", ["nvidia.com/gpu=3-1"], None),
        (FOREIGN, uuid(77).lower(), [], set()),
        ("compute-domain.nvidia.com", "channel-0", [], set()),
    ],
)
def test_which_gpu(driver: str, device: str, cdi: list[str], expected: set[str] | None) -> None:
    found = which(Claim("ns", "c", driver, "node", device, tuple(cdi)), HOST)
    assert found == (None if expected is None else frozenset(expected))
