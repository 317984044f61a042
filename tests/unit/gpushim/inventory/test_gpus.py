"""GPUs and MIG instances as real nvidia-ml-py tells them from the simulated driver."""

from __future__ import annotations

import pytest

import fakehost
from gpushim.inventory import gpus
from unit.gpushim.inventory.machine import Machine


@pytest.mark.parametrize("count", [1, 2, 8])
def test_whole_gpus(machine: Machine, count: int) -> None:
    host = machine.build(count)
    found = machine.refreshed()["gpus"]
    assert [gpu["uuid"] for gpu in found] == [gpu.uuid for gpu in host.gpus]
    assert [gpu["minor"] for gpu in found] == [gpu.minor for gpu in host.gpus]
    assert [gpu["node"] for gpu in found] == [f"/dev/nvidia{gpu.minor}" for gpu in host.gpus]
    assert [gpu["index"] for gpu in found] == list(range(count))
    assert not [gpu for gpu in found if gpu["problem"] or gpu["mig"]]


def test_facts_for_requirements(machine: Machine) -> None:
    machine.build(1)
    snapshot = machine.refreshed()
    assert snapshot["driver"]["version"] == "535.183.01"
    assert snapshot["driver"]["cuda"] == "12.2"
    assert (snapshot["gpus"][0]["arch"], snapshot["gpus"][0]["brand"]) == ("8.0", "Nvidia")
    assert snapshot["gpus"][0]["model"] == "NVIDIA A100-SXM4-40GB"


def test_memory_is_that_of_each_and_zero_where_nvml_does_not_tell_it(machine: Machine) -> None:
    machine.build([{}, {**fakehost.H100, "mig": ["3g.40gb", "1g.10gb"]}, {"memory": 0}])
    snapshot = machine.refreshed()
    assert [gpu["memory"] for gpu in snapshot["gpus"]] == [40960, 81559, 0]
    assert [mig["memory"] for mig in snapshot["mig"]] == [40960, 10240]
    assert [gpu["problem"] for gpu in snapshot["gpus"]] == [None] * 3


def test_mig_instances(machine: Machine) -> None:
    host = machine.build(2, mig={1: [(3, 0, "2g.10gb"), (9, 1, "1g.5gb")]})
    snapshot = machine.refreshed()
    parent = host.gpus[1]
    assert [gpu["mig"] for gpu in snapshot["gpus"]] == [False, True]
    assert [(mig["gi"], mig["ci"], mig["profile"], mig["index"], mig["gpu"]) for mig in snapshot["mig"]] == [
        (3, 0, "2g.10gb", 0, 1),
        (9, 1, "1g.5gb", 1, 1),
    ]
    assert snapshot["mig"][1]["legacy"] == f"MIG-{parent.uuid}/9/1"
    caps = [fakehost.gi_cap(parent.minor, 9), fakehost.ci_cap(parent.minor, 9, 1)]
    assert snapshot["mig"][1]["nodes"] == [f"/dev/nvidia-caps/nvidia-cap{number}" for number in caps]
    assert set(snapshot["mig"][1]["nodes"]) <= set(snapshot["nodes"])


def test_gpu_in_mig_mode_without_instances(machine: Machine) -> None:
    machine.build(1, mig={0: []})
    snapshot = machine.refreshed()
    assert (snapshot["gpus"][0]["mig"], snapshot["mig"]) == (True, [])


def test_one_sick_gpu_leaves_the_others(machine: Machine) -> None:
    host = machine.build(3)
    host.behave(fail_gpu={1: 15})
    snapshot = machine.refreshed()
    assert [bool(gpu["problem"]) for gpu in snapshot["gpus"]] == [False, True, False]
    sick = snapshot["gpus"][1]
    assert (sick["uuid"], sick["minor"]) == (host.gpus[1].uuid, host.gpus[1].minor)
    assert sick["problem"] == f"GPU 1 ({sick['pci']}) does not answer NVML: GPU is lost"
    assert sick["problem"] in snapshot["notes"]


@pytest.mark.parametrize("code", [9, 3, 999])
def test_nvml_that_fails_leaves_whole_gpus(machine: Machine, code: int) -> None:
    host = machine.build(2, mig=True)
    host.behave(fail=code)
    snapshot = machine.refreshed()
    assert (snapshot["source"], snapshot["mig"]) == ("proc", [])
    assert [gpu["uuid"] for gpu in snapshot["gpus"]] == [gpu.uuid for gpu in host.gpus]
    assert [gpu["mig"] for gpu in snapshot["gpus"]] == [True, False]
    assert "NVML cannot be used (" in snapshot["notes"][0]
    assert snapshot["error"] is None
    assert snapshot["files"]["compute"]


def test_without_nvml_library(machine: Machine) -> None:
    host = machine.build(1)
    (machine.folder / "host" / host.libdir / f"libnvidia-ml.so.{host.driver}").unlink()
    snapshot = machine.refreshed()
    assert snapshot["source"] == "proc"
    assert f"there is no libnvidia-ml.so.{host.driver} below {machine.root}" in snapshot["notes"][0]


def test_missing_node_is_a_note(machine: Machine) -> None:
    host = machine.build(2, modify=False)
    host.remove_node(f"nvidia{host.gpus[0].minor}")
    snapshot = machine.refreshed()
    assert [gpu["uuid"] for gpu in snapshot["gpus"] if not gpu["problem"]] == [host.gpus[1].uuid]
    assert any("is left out: NVML does not list it" in note for note in snapshot["notes"])


def test_node_that_is_none_is_a_problem_of_its_gpu(machine: Machine) -> None:
    host = machine.build(1, modify=False)
    host.behave(fail=9)
    host.remove_node(f"nvidia{host.gpus[0].minor}")
    snapshot = machine.refreshed()
    assert "has no usable device node" in snapshot["gpus"][0]["problem"]


def test_error_of_mismatched_versions() -> None:
    assert str(gpus.mismatch("535.1", "535.2")) == (
        "the NVIDIA kernel module is 535.1 but its libraries are 535.2: reboot, or reload the module "
        "(rmmod/modprobe), then run gpushim refresh"
    )
    assert "its libraries are of another version:" in str(gpus.mismatch("535.1", "535.1"))
