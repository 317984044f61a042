"""A look at the host does without GPUs whose calls hang, as the device plugin has told, and has them as they were."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host
from gpushim.ground.errors import INVENTORY
from gpushim.inventory import earlier, procfs, survey
from unit.gpushim.inventory.machine import Machine, told
from waiting import until

pytestmark = pytest.mark.slow

MIGS = [{}, {"mig": ["1g.5gb", "1g.5gb"]}, {}]


@pytest.fixture
def host(machine: Machine) -> Host:
    """Three GPUs that were listed once; calls of the second hang, which is told."""
    found = machine.build(MIGS)
    machine.refreshed()
    told(machine.state, found.gpus[1].uuid)
    found.hang(1)
    return found


def test_the_others_are_asked_and_it_is_as_it_was(machine: Machine, host: Host) -> None:
    before, now = machine.saved(), machine.refreshed("--force")
    assert [(gpu["index"], gpu["nvml"], gpu["uuid"]) for gpu in now["gpus"]] == [
        (gpu["index"], gpu["nvml"], gpu["uuid"]) for gpu in before["gpus"]
    ]
    assert now["mig"] == before["mig"]
    assert [bool(gpu["problem"]) for gpu in now["gpus"]] == [False, True, False]
    assert now["gpus"][1]["problem"] in now["notes"]
    assert (now["source"], now["missing"], now["life"]) == ("nvml", [], pytest.approx(survey.PASSING, abs=20))
    assert {**now["gpus"][1], "problem": None, "peers": before["gpus"][1]["peers"]} == before["gpus"][1]


def test_what_the_kernel_tells_of_it_is_not_read_for_that_hangs_too(machine: Machine, host: Host) -> None:
    name = procfs.sysfs_name(machine.saved()["gpus"][1]["pci"])
    Path(machine.root, "proc/driver/nvidia/gpus", name, "information").write_text("")
    notes: list[str] = []
    found = procfs.gpus(f"{machine.root}/proc", notes, earlier.instead(earlier.HungGpus(machine.state).read()))
    assert ([gpu["uuid"] for gpu in found], notes) == ([gpu.uuid for gpu in host.gpus], [])


def test_one_that_is_sick_beside_it_is_known_by_its_address(machine: Machine, host: Host) -> None:
    host.lose(2)
    found = machine.refreshed("--force")["gpus"]
    assert [gpu["uuid"] for gpu in found] == [gpu.uuid for gpu in host.gpus]
    assert "does not answer NVML: GPU is lost" in found[2]["problem"]
    assert found[0]["problem"] is None


def test_it_stays_out_of_a_look_after_a_look(machine: Machine, host: Host) -> None:
    first, second = machine.refreshed("--force"), machine.refreshed("--force")
    assert second["gpus"] == first["gpus"]
    assert second["mig"] == first["mig"]


def test_where_nvml_fails_it_keeps_its_reason(machine: Machine, host: Host) -> None:
    host.behave(fail=999)
    found = machine.refreshed("--force")
    assert found["source"] == "proc"
    assert "calls of it hang" in found["gpus"][1]["problem"]


def test_it_is_asked_again_when_nobody_says_that_it_hangs(machine: Machine, host: Host) -> None:
    machine.refreshed("--force")
    host.hang(None)
    Path(machine.state, earlier.HUNG).unlink()
    assert not any(gpu["problem"] for gpu in machine.refreshed("--force")["gpus"])


def test_a_look_that_waits_for_it_ends_when_it_is_told(machine: Machine, host: Host) -> None:
    """Who began it has it begun again; nobody is told of a failure."""
    Path(machine.state, earlier.HUNG).unlink()
    looking = machine.start("--force")
    try:
        waits = Path(machine.state, "lock")
        until(lambda: "GPU 1 to answer" in waits.read_text())
        told(machine.state, host.gpus[1].uuid)
        began = time.monotonic()
        assert looking.communicate(timeout=60)[1].endswith("hangs: list the GPUs again, which does without it\n")
        assert looking.returncode == INVENTORY
        assert time.monotonic() - began < 5
        assert not Path(machine.state, "failure").exists()
        machine.refreshed("--force")
    finally:
        ended(looking)


def ended(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("more", "ago", "there"),
    [
        ({}, 0.0, True),
        ({}, earlier.GOOD - 10, True),
        ({}, earlier.GOOD, False),
        ({}, -60.0, False),
        ({"boot": "another"}, 0.0, False),
        ({"gpus": [1]}, 0.0, False),
        ({"gpus": {"GPU-1": "x"}}, 0.0, False),
        ({"more": "x" * earlier.HUNG_LIMIT}, 0.0, False),
    ],
    ids=["now", "soon old", "old", "of later", "another boot", "no object", "no time", "long"],
)
def test_what_counts(tmp_path: Path, more: dict[str, Any], ago: float, there: bool) -> None:
    told(str(tmp_path), "GPU-1", ago=ago, **more)
    assert [*earlier.hanging(str(tmp_path))] == ["GPU-1"] * there


@pytest.mark.parametrize("place", [".", "device-plugin", earlier.HUNG])
def test_what_others_may_write_does_not_count(tmp_path: Path, place: str) -> None:
    told(str(tmp_path), "GPU-1")
    (tmp_path / place).chmod(0o777)
    assert not earlier.hanging(str(tmp_path))


@pytest.mark.parametrize("what", ["binding", "unbound", "module", "gone"])
def test_one_to_which_the_driver_is_bound_anew_is_another(what: str) -> None:
    facts: Any = {"module": "1", "majors": [], "gpus": {"0000:3b:00.0": 7}, "mig": {}}
    one: Any = {"gpu": {"pci": "00000000:3b:00.0", "minor": 0}, "mig": [], "stamp": facts}
    changed: dict[str, Any] = {"binding": {"0000:3b:00.0": 8}, "unbound": {"0000:3b:00.0": None}, "gone": {}}
    now: Any = {**facts, "module": "2"} if what == "module" else {**facts, "gpus": changed[what]}
    assert earlier.still([one], facts) == [one]
    assert earlier.still([one], now) == []


def test_instances_that_were_made_anew_are_not_known() -> None:
    facts: Any = {"module": "1", "majors": [], "gpus": {"0000:3b:00.0": 7}, "mig": {"gpu0": {"gi1": {"ci0": [1, 2]}}}}
    one: Any = {"gpu": {"pci": "00000000:3b:00.0", "minor": 0}, "mig": [{"gi": 1}], "stamp": facts}
    now: Any = {**facts, "mig": {"gpu0": {"gi1": {"ci0": [1, 3]}}}}
    assert earlier.still([one], now) == [{**one, "mig": []}]


def test_a_look_of_the_first_boot_asks_all(machine: Machine) -> None:
    host = machine.build(2)
    told(machine.state, host.gpus[0].uuid)
    Path(machine.state).chmod(0o755)
    assert not any(gpu["problem"] for gpu in machine.refreshed()["gpus"])
