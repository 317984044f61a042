"""A machine with kubelet's pods, and their containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.gpushim.containers import checkpoints
from unit.gpushim.containers.machines import Machine, given

ENTRY = {**checkpoints.ENTRY, "DeviceIDs": {"0": ["GPU-1"]}}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def named(container: str = "c", uid: str = "u", pod: str = "p") -> dict[str, str]:
    words = {"sandbox-namespace": "ns", "sandbox-name": pod, "container-name": container, "sandbox-uid": uid}
    return {f"io.kubernetes.cri.{key}": value for key, value in words.items() if value}


def box(machine: Machine, name: str, *env: str, pid: int | None = None, **more: str) -> None:
    root = {"path": "/rootfs"}
    spec = given("/dev/nvidia1", process={"env": env}, annotations=named(**more), root=root)
    machine.runc(name, spec, machine.process() if pid is None else pid)
