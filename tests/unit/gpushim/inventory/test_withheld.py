"""A host inside another (LXC, kind, a pod) that was given some of the machine's GPUs, while /proc shows all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpushim.inventory import nodes, renew
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which makes nodes and cgroups")
NO_MODULES = "load-kernel-modules = false\n"
DEVICES = Path("/sys/fs/cgroup/devices")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.inside = True
    return machine


def given_first(machine: Machine, more: str = NO_MODULES) -> fakehost.Host:
    """Build a host of two GPUs with the first one's nodes; none is made in it."""
    host = machine.build(2, more)
    host.remove_node(f"nvidia{host.gpus[1].minor}")
    return host


def devices(machine: Machine) -> list[str]:
    spec = json.loads(Path(machine.state, "cdi/nvidia.com-gpu.json").read_text())
    return [device["name"] for device in spec["devices"]]


def is_all(snapshot: Any, machine: Machine, host: fakehost.Host) -> None:
    """Assert that the first GPU is all that there is, and that nothing is wrong."""
    assert [gpu["uuid"] for gpu in snapshot["gpus"]] == [host.gpus[0].uuid]
    assert (snapshot["missing"], snapshot["notes"]) == ([], [])
    assert devices(machine) == ["0", host.gpus[0].uuid, "all"]


def test_a_node_that_was_not_given_is_not_made_and_no_defect(machine: Machine) -> None:
    host = given_first(machine)
    snapshot = machine.refreshed()
    is_all(snapshot, machine, host)
    assert not os.path.lexists(f"{machine.root}/dev/nvidia{host.gpus[1].minor}")


@pytest.mark.skipif(nodes._is_inside(), reason="this machine is a container")
def test_a_host_that_is_inside_no_other_misses_the_gpu(tmp_path: Path) -> None:
    """Without its node a GPU is not left out in silence: `all` is refused."""
    machine = Machine(tmp_path)
    host = given_first(machine)
    (sentence,) = machine.refreshed()["missing"]
    assert f"is its node /dev/nvidia{host.gpus[1].minor} there?" in sentence


def test_it_is_made_where_modules_may_be_loaded(machine: Machine) -> None:
    host = given_first(machine, "")
    assert len(machine.refreshed()["gpus"]) == 2
    assert os.path.lexists(f"{machine.root}/dev/nvidia{host.gpus[1].minor}")


def test_a_node_that_is_given_later_is_this_host_s(machine: Machine) -> None:
    host = given_first(machine)
    machine.refreshed()
    os.mknod(
        f"{machine.root}/dev/nvidia{host.gpus[1].minor}", stat.S_IFCHR | 0o666, os.makedev(195, host.gpus[1].minor)
    )
    assert len(machine.refreshed("--force")["gpus"]) == 2


@pytest.fixture
def cgroup(machine: Machine) -> Iterator[Path]:
    """A cgroup whose processes may make any node, as LXC's, and open none of minor number 1 of the driver."""
    if not (DEVICES / "devices.deny").exists() and not (DEVICES / "devices.list").exists():
        pytest.skip("there is no hierarchy of cgroup v1 for devices")
    group = DEVICES / f"gpushim-{os.getpid()}"
    group.mkdir()
    yield group
    group.rmdir()


@pytest.mark.parametrize("more", ["", NO_MODULES], ids=["modules may be loaded", "no modules"])
def test_a_node_that_cannot_be_opened_is_not_this_host_s(machine: Machine, cgroup: Path, more: str) -> None:
    host = machine.build(2, more)
    (cgroup / "devices.deny").write_text(f"c 195:{host.gpus[1].minor} rw")
    enter = ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(cgroup)]
    done = subprocess.run([*enter, *renew.command()], env=machine.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    is_all(machine.saved(), machine, host)
