"""How near GPUs are, as a simulated NVML tells it; a refresh never fails for want of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host
from fakehost.gpus import describe
from gpushim.inventory import nvml as session
from gpushim.inventory import procfs
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow

SYSTEM, SINGLE = 50, 10  # nvmlGpuTopologyLevel_t


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("peers"))


@pytest.fixture(scope="module")
def host(machine: Machine) -> Host:
    return machine.build(3)


def connect(machine: Machine, host: Host, gpus: Any) -> None:
    """Let the host have other GPUs, whose NVML works, and forget the indices of those before."""
    shutil.rmtree(machine.state, ignore_errors=True)
    host.gpus[:] = describe(gpus, None)
    host.behave()
    host.update()


def found(snapshot: Any) -> dict[int, list[list[int]]]:
    return {gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([{}], {0: []}),
        ([{"near": {1: 0}}, {}], {0: [[1, 0, 0]], 1: [[0, 0, 0]]}),
        ([{"near": {1: 10, 2: 40}}, {}, {}], {0: [[1, 10, 0], [2, 40, 0]], 2: [[0, 40, 0], [1, 50, 0]]}),
        ([{"links": {1: 4}}, {"links": {2: 1}}, {}], {0: [[1, 50, 4], [2, 50, 0]], 1: [[0, 50, 4], [2, 50, 1]]}),
        ([{"switched": 12}, {"switched": 18}, {}], {0: [[1, 50, 12], [2, 50, 0]], 1: [[0, 50, 12], [2, 50, 0]]}),
        ([{"switched": 6, "links": {1: 2}}, {"switched": 6}], {0: [[1, 50, 8]], 1: [[0, 50, 8]]}),
    ],
    ids=["alone", "one board", "bus", "direct", "switch", "both"],
)  # fmt: skip
def test_what_nvml_tells(machine: Machine, host: Host, gpus: Any, expected: dict[int, Any]) -> None:
    connect(machine, host, gpus)
    launcher_facts = found(machine.refreshed("--force"))
    assert {index: launcher_facts[index] for index in expected} == expected


@pytest.mark.parametrize("error", [3, 13, 999], ids=["not supported", "an old driver", "unknown"])
def test_without_answers_there_are_no_links_and_all_is_far(machine: Machine, host: Host, error: int) -> None:
    connect(machine, host, [{"links": {1: 4}, "near": {1: SINGLE}}, {}])
    host.behave(fail_links=error)
    snapshot = machine.refreshed("--force")
    assert (snapshot["source"], snapshot["notes"]) == ("nvml", [])
    assert found(snapshot) == {0: [[1, SYSTEM, 0]], 1: [[0, SYSTEM, 0]]}


def test_lost_gpu_has_no_peers_and_is_no_switch(machine: Machine, host: Host) -> None:
    """All three are linked to each other; what is left of the third are its neighbours' links."""
    connect(machine, host, [{"links": {1: 2, 2: 4}}, {"links": {2: 4}}, {}])
    host.behave(fail_gpu={2: 15})
    snapshot = machine.refreshed("--force")
    assert found(snapshot) == {0: [[1, SYSTEM, 2]], 1: [[0, SYSTEM, 2]], 2: []}
    assert "GPU is lost" in snapshot["gpus"][2]["problem"]


def test_numa_nodes_come_from_sysfs(machine: Machine, host: Host) -> None:
    connect(machine, host, [{"numa": 3}, {"numa": -1}])
    assert [gpu["numa"] for gpu in machine.refreshed("--force")["gpus"]] == [3, -1]


@pytest.mark.parametrize("content", [None, "", "x\n", "\xff", "-2\n"])
def test_numa_node_that_is_not_told_is_none(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "bus/pci/devices/0000:07:00.0"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "numa_node").write_text(content, encoding="latin-1")
    gpu: Any = {"pci": "00000000:07:00.0", "numa": -1}
    procfs.add_sysfs([gpu], str(tmp_path), str(tmp_path))
    assert gpu["numa"] == -1


class OldBindings:
    """A pynvml that has none of the functions."""

    NVMLError = RuntimeError


class Garbled(OldBindings):
    """One whose answers make no sense."""

    @staticmethod
    def nvmlDeviceGetNvLinkState(handle: object, link: int) -> int:  # noqa: N802 - NVML's name
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "garbled")


@pytest.mark.parametrize("nvml", [OldBindings, Garbled])
def test_bindings_without_these_functions_are_no_trouble(nvml: Any) -> None:
    gpus: Any = [{"index": index, "pci": f"00000000:0{index}:00.0", "peers": []} for index in range(2)]
    session.add_peers(nvml, gpus, {0: None, 1: None}, {gpu["pci"] for gpu in gpus})
    assert [gpu["peers"] for gpu in gpus] == [[[1, SYSTEM, 0]], [[0, SYSTEM, 0]]]
