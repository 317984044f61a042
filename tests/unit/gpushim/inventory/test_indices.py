"""An index means one GPU for a whole boot: as GPUs go and come, NVML fails, files are lost, a refresh is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakehost import Gpu, Host
from gpushim.ground import system
from gpushim.inventory import earlier, ensure, procfs
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow

A, B, C = [{"index": number, "uuid": f"GPU-{number}", "pci": f"pci{number}"} for number in range(3)]


def settled(known: list[Any], *gpus: tuple[int, str, str]) -> list[tuple[int, str]]:
    """Settle GPUs that NVML lists as number, UUID and PCI address; return the numbers and UUIDs that they get."""
    numbers = earlier.Indices(known)
    found: list[Any] = [{**procfs.unknown(number, ""), "uuid": uuid, "pci": pci} for number, uuid, pci in gpus]
    for one in found:
        numbers.settle(one)
    return [(one["index"], one["uuid"]) for one in found]


@pytest.mark.parametrize(
    ("listed", "now"),
    [
        ([(0, "GPU-1", "pci1"), (1, "GPU-2", "pci2")], [(1, "GPU-1"), (2, "GPU-2")]),
        ([(0, "GPU-2", "pci0"), (1, "GPU-1", "pci1")], [(2, "GPU-2"), (1, "GPU-1")]),
        ([(0, "", "pci2"), (1, "GPU-1", "pci1")], [(2, "GPU-2"), (1, "GPU-1")]),
        ([(0, "GPU-9", "pci0"), (1, "GPU-1", "pci1")], [(3, "GPU-9"), (1, "GPU-1")]),
        (
            [(0, "GPU-9", "pci9"), (1, "GPU-0", "pci0"), (2, "GPU-8", "pci8")],
            [(3, "GPU-9"), (0, "GPU-0"), (4, "GPU-8")],
        ),
        ([(3, "GPU-9", "pci9"), (4, "GPU-8", "pci8")], [(3, "GPU-9"), (4, "GPU-8")]),
        ([(0, "GPU-2", "pci9"), (1, "", "pci2")], [(2, "GPU-2"), (3, "")]),
    ],
    ids=["gone", "moved", "no UUID yet", "another in its slot", "new ones", "with free numbers", "its slot taken"],
)
def test_which_gpu_gets_which_index(listed: list[tuple[int, str, str]], now: list[tuple[int, str]]) -> None:
    assert settled([A, B, C], *listed) == now


def test_nothing_is_known_at_first() -> None:
    assert settled([], (0, "GPU-1", "pci1"), (1, "GPU-0", "pci0")) == [(0, "GPU-1"), (1, "GPU-0")]


@pytest.fixture
def host(machine: Machine) -> Host:
    """A host of three GPUs, the last divided, that have been listed once."""
    host = machine.build([{}, {}, {"mig": [(1, 0, "3g.20gb")]}])
    machine.refreshed()
    return host


def has(host: Host, *gpus: Gpu) -> None:
    """Let a host have these GPUs alone."""
    host.gpus[:] = gpus
    for number, gpu in enumerate(gpus):
        gpu.index = number
    host.update()


def meant(snapshot: Any) -> dict[int, str]:
    return {gpu["index"]: gpu["uuid"] for gpu in snapshot["gpus"]}


def look(machine: Machine, *args: str) -> Any:
    """List the GPUs, of which some may be missing."""
    machine.refresh("--force", *args)
    return machine.saved()


def test_those_after_a_gpu_that_goes_keep_theirs_and_it_gets_its_own_back(machine: Machine, host: Host) -> None:
    first, second, third = host.gpus
    has(host, second, third)
    snapshot = look(machine)
    assert meant(snapshot) == {1: second.uuid, 2: third.uuid}
    assert [gpu["nvml"] for gpu in snapshot["gpus"]] == [0, 1]
    assert [(mig["gpu"], mig["index"]) for mig in snapshot["mig"]] == [(2, 0)]
    assert [gpu["peers"][0][0] for gpu in snapshot["gpus"]] == [2, 1]
    assert [one["uuid"] for one in snapshot["absent"]] == [first.uuid]
    assert f"GPU 0 ({first.uuid}) is missing, and no other" in snapshot["notes"][0]
    has(host, first, second, third)
    assert meant(look(machine)) == {0: first.uuid, 1: second.uuid, 2: third.uuid}
    assert machine.saved()["absent"] == []


def test_by_proc_alone_they_are_the_same(machine: Machine, host: Host) -> None:
    second, third = host.gpus[1:]
    host.behave(fail=9)
    has(host, second, third)
    snapshot = look(machine)
    assert (snapshot["source"], meant(snapshot)) == ("proc", {1: second.uuid, 2: third.uuid})
    assert {gpu["nvml"] for gpu in snapshot["gpus"]} == {-1}


def test_a_first_look_by_proc_settles_nothing(machine: Machine) -> None:
    host = machine.build(2)
    host.behave(fail=9)
    last = host.gpus[1]
    machine.refresh()
    assert not Path(machine.state, earlier.INDICES).exists()
    has(host, last)
    host.behave()
    assert meant(look(machine)) == {0: last.uuid}


def test_a_sick_gpu_has_its_index_and_its_name(machine: Machine, host: Host) -> None:
    second, third = host.gpus[1:]
    has(host, second, third)
    look(machine)
    host.behave(fail_gpu={0: 15})
    snapshot = look(machine)
    assert meant(snapshot) == {1: second.uuid, 2: third.uuid}
    assert snapshot["gpus"][0]["problem"] == f"GPU 1 (0000{second.pci}) does not answer NVML: GPU is lost"


def test_where_two_are_left_nobody_guesses_which_is_sick(machine: Machine) -> None:
    host = machine.build(3, modify=False)
    host.remove_node(f"nvidia{host.gpus[0].minor}")
    host.behave(fail_gpu={1: 15})
    snapshot = look(machine)
    assert [gpu["uuid"] for gpu in snapshot["gpus"]] == [host.gpus[2].uuid]
    assert len([why for why in snapshot["missing"] if "left out" in why]) == 3


LOSSES: dict[str, Callable[[Path], object]] = {
    "the snapshot": lambda state: (state / ensure.SNAPSHOT).unlink(),
    "the file": lambda state: (state / earlier.INDICES).unlink(),
    "damaged": lambda state: (state / earlier.INDICES).write_text('{"boot": "'),
    "no numbers": lambda state: (state / earlier.INDICES).write_text(
        json.dumps({"boot": system.boot(), "gpus": [{"index": True, "uuid": "", "pci": "x"}]})
    ),
    "others may write": lambda state: (state / earlier.INDICES).chmod(0o666),
    "by proc": lambda state: None,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_is_known_from_the_other(machine: Machine, host: Host, loss: str) -> None:
    second, third = host.gpus[1:]
    if loss == "by proc":
        host.behave(fail=9)
        look(machine)
        host.behave()
    LOSSES[loss](Path(machine.state))
    has(host, second, third)
    assert meant(look(machine)) == {1: second.uuid, 2: third.uuid}


def test_another_boot_begins_anew(machine: Machine, host: Host) -> None:
    second, third = host.gpus[1:]
    for name in (earlier.INDICES, ensure.SNAPSHOT):
        path = Path(machine.state, name)
        path.write_text(path.read_text().replace(json.dumps(system.boot()), '"another"'))
    has(host, second, third)
    assert meant(look(machine)) == {0: second.uuid, 1: third.uuid}


def test_a_refresh_that_is_killed_leaves_what_was_settled(machine: Machine, host: Host) -> None:
    second, third = host.gpus[1:]
    host.behave(hang=True)
    has(host, second, third)
    process = machine.start("--force")
    while "NVML" not in Path(machine.state, "lock").read_text():
        assert process.poll() is None
    process.kill()
    process.communicate()
    host.behave()
    assert meant(look(machine)) == {1: second.uuid, 2: third.uuid}


def test_an_upgrade_while_the_host_runs_knows_what_the_form_before_had(machine: Machine, host: Host) -> None:
    second, third = host.gpus[1:]
    path = Path(machine.state, ensure.SNAPSHOT)
    before = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("form", "absent")}
    for gpu in before["gpus"]:
        del gpu["nvml"]
    path.write_text(json.dumps(before))
    Path(machine.state, earlier.INDICES).unlink()
    has(host, second, third)
    assert meant(look(machine)) == {1: second.uuid, 2: third.uuid}
