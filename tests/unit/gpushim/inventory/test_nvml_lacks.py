"""Drivers whose NVML lacks a function, and GPUs whose fabric is not ready: they are listed all the same."""

from __future__ import annotations

import pytest

from gpushim.inventory import survey
from unit.gpushim.inventory.machine import Machine

FUNCTION_NOT_FOUND = 13


def test_the_version_of_cuda_comes_from_libcuda_where_nvml_lacks_it(machine: Machine) -> None:
    host = machine.build(2)
    host.lack("nvmlSystemGetCudaDriverVersion_v2", code=FUNCTION_NOT_FOUND)
    found = machine.refreshed()
    assert (found["source"], found["driver"]["cuda"], len(found["gpus"])) == ("nvml", "12.2", 2)


def test_without_libcuda_no_version_is_known(machine: Machine) -> None:
    host = machine.build(1)
    host.lack("nvmlSystemGetCudaDriverVersion_v2", code=FUNCTION_NOT_FOUND)
    for path in (machine.folder / "host").glob("usr/lib/x86_64-linux-gnu/libcuda.so*"):
        path.unlink()
    found = machine.refreshed()
    assert (found["source"], found["driver"]["cuda"]) == ("nvml", "")


def test_a_gpu_whose_compute_capability_is_not_told_is_listed(machine: Machine) -> None:
    machine.build(1).lack("nvmlDeviceGetCudaComputeCapability", code=FUNCTION_NOT_FOUND)
    found = machine.refreshed()
    assert (found["source"], found["gpus"][0]["arch"], found["gpus"][0]["problem"]) == ("nvml", "", None)


@pytest.mark.parametrize(
    ("state", "status", "problem"),
    [
        (0, 0, ""),
        (1, 0, "it has not begun"),
        (2, 0, "it is being made"),
        (3, 0, ""),
        (3, 999, "it has failed with NVML's error 999"),
    ],
)
def test_a_fabric_that_is_not_ready_is_told_and_looked_at_again_soon(
    machine: Machine, state: int, status: int, problem: str
) -> None:
    machine.build(2).fabric_state(1, state, status)
    found = machine.refreshed()
    assert [gpu["fabric_problem"] for gpu in found["gpus"]] == ["", problem]
    assert (found["life"] < survey.SETTLED) is bool(problem)


def test_a_gpu_in_mig_mode_waits_for_no_fabric(machine: Machine) -> None:
    machine.build([{"mig": [(1, 0, "3g.20gb")]}]).fabric_state(0, 1)
    assert [gpu["fabric_problem"] for gpu in machine.refreshed()["gpus"]] == [""]
