"""A refresh that completes the host first: modules, nodes, links; and what it costs."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from fakehost import kernel
from gpushim.inventory import ensure
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow

UVM = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


def test_after_a_boot_all_is_loaded_made_and_listed(machine: Machine) -> None:
    host = machine.build(2, drm=True)
    host.unload("nvidia")
    snapshot = machine.refreshed()
    assert kernel.loads(host.root) == ["nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert snapshot["source"] == "nvml"
    assert {*UVM, "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia0", "/dev/nvidia1"} <= set(snapshot["nodes"])
    assert all(path in snapshot["nodes"] for gpu in snapshot["gpus"] for path in gpu["drm"])
    assert len(os.listdir(f"{host.root}/dev/char")) == 8
    assert not [gpu["problem"] for gpu in snapshot["gpus"] if gpu["problem"]]


def test_a_refresh_that_makes_nodes_ends_with_a_true_snapshot(machine: Machine) -> None:
    machine.build(1).unload("nvidia_uvm", "nvidia_modeset")
    assert ensure.read(machine.config, machine.state) is None
    snapshot = machine.refreshed()
    assert ensure.read(machine.config, machine.state) == snapshot


def test_a_second_refresh_loads_and_writes_nothing(machine: Machine) -> None:
    host = machine.build(1)
    host.unload("nvidia_uvm")
    machine.refreshed()
    before = [os.stat(f"{machine.state}/inventory.json").st_ino, kernel.loads(host.root)]
    machine.refreshed()
    assert [os.stat(f"{machine.state}/inventory.json").st_ino, kernel.loads(host.root)] == before


def test_a_node_that_went_is_made_again_though_nothing_else_changed(machine: Machine) -> None:
    host = machine.build(1)
    host.unload("nvidia_uvm")
    Path(host.root + kernel.BROKEN).touch()
    assert not set(UVM) & set(machine.refreshed()["nodes"])
    Path(host.root + kernel.BROKEN).unlink()
    subprocess.run(["/usr/sbin/chroot", host.root, "/sbin/modprobe", "nvidia_uvm"], check=True)  # no stamp sees this
    assert set(UVM) <= set(machine.refreshed()["nodes"])


def test_policy_can_forbid_loading(machine: Machine) -> None:
    host = machine.build(1, "load-kernel-modules = false\n")
    host.unload("nvidia_uvm")
    snapshot = machine.refreshed()
    assert kernel.loads(host.root) == []
    assert not set(UVM) & set(snapshot["nodes"])


def test_a_module_that_does_not_load_is_a_note(machine: Machine) -> None:
    host = machine.build(1)
    host.unload("nvidia_uvm")
    Path(host.root + kernel.BROKEN).touch()
    snapshot = machine.refreshed()
    assert snapshot["error"] is None
    assert "the kernel module nvidia_uvm is not loaded" in snapshot["notes"][-1]


def test_a_driver_that_does_not_load_is_a_refusal(machine: Machine) -> None:
    host = machine.build(1)
    host.unload("nvidia")
    Path(host.root + kernel.BROKEN).touch()
    code, said = machine.refresh()
    assert code == 12
    assert "no NVIDIA driver is loaded" in said


def test_drm_nodes_that_come_later_are_noticed(machine: Machine) -> None:
    host = machine.build(1)
    assert machine.refreshed()["gpus"][0]["drm"] == []
    host.drm = True
    host.update()
    assert ensure.read(machine.config, machine.state) is None
    snapshot = machine.refreshed()
    assert snapshot["gpus"][0]["drm"] == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert set(snapshot["gpus"][0]["drm"]) <= set(snapshot["nodes"])
    os.chmod(host.node("dri/card1"), 0o600)
    assert ensure.read(machine.config, machine.state) is None


def test_split_roots(machine: Machine) -> None:
    dev_root = machine.folder / "devices"
    (dev_root / "dev").mkdir(parents=True)
    machine.build(1, f'dev-root = "{dev_root}"\n', dev_root=str(dev_root), nodes=False, node_mode=0o660, node_gid=44)
    snapshot = machine.refreshed()
    assert snapshot["nodes"]["/dev/nvidia-uvm"] == [508, 0, 0o660, 0, 44]
    assert os.listdir(f"{machine.root}/dev") == []


def used() -> float:
    """Return the seconds of a processor that children of this process have used, which other load hardly changes."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def test_eight_gpus_of_seven_instances_take_less_than_a_second(machine: Machine) -> None:
    machine.build(8, mig={index: ["1g.5gb"] * 7 for index in range(8)}, drm=True)
    machine.refreshed()
    times = []
    for _ in range(3):
        started = used()
        assert machine.refresh("--force")[0] == 0
        times.append(used() - started)
    assert len(machine.saved()["mig"]) == 56
    assert min(times) < 1, times
