"""A system that is half another platform: what is missing of it is said, and not a kernel module."""

from __future__ import annotations

from pathlib import Path

from fakehost import platforms as simulated
from unit.gpushim.inventory.machine import Machine


def test_wsl_without_its_library_is_told_to_update_wsl(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    host = machine.build()
    simulated.to_wsl(host)
    Path(host.root, "proc/driver/nvidia/version").unlink()  # which stays for the simulated NVML
    Path(host.root, "usr/lib/wsl/lib/libdxcore.so").unlink()
    machine.refresh("--force")
    sentence = machine.saved()["error"]["sentence"]
    assert sentence.endswith("update WSL, if this is WSL2; then run gpushim refresh")
