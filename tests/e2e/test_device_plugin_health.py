"""What a real kubelet, and the pods that it runs, are told of GPUs in trouble, and how soon.

The GPUs are simulated: two whole ones of two replicas each, and one with two MIG instances of two replicas each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import SECONDS, Plugin, allocated, plugin
from e2e.podgpus import GPU
from e2e.watchers import watches
from fakehost import Host
from gpushim.paths import trust

MIG = "nvidia.com/mig-1g.5gb"
SHARING = f"""version: v1
sharing:
  timeSlicing:
    resources:
    - {{name: {GPU}, replicas: 2}}
    - {{name: {MIG}, replicas: 2}}
"""
AT_ONCE = 0.1  # seconds from an event until kubelet gives out none of the GPU's devices
LOST = 10.0  # the same, from a loss that nothing tells of
ANSWER = 0.1  # seconds that an Allocate takes on a machine that has other work, at its best of several
# XIDs: needs a reset; marks nothing; needs a reset that the driver does not ask for.
OFF_THE_BUS, EXCEPTION, SILENT = 79, 13, 119
STORM = 1500  # more than are read before the child that tells them is taken for mad


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The three GPUs."""
    root = tmp_path_factory.mktemp("health") / "root"
    gpus = [{}, {}, {"mig": ["1g.5gb", "1g.5gb"]}]
    host = fakehost.build(str(root), gpus, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    host.figure(1, ecc_uncorrected_volatile=0)
    return host


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The plugin's arguments."""
    path = tmp_path_factory.mktemp("sharing") / "config.yaml"
    path.write_text(SHARING)
    return "--mig-strategy=mixed", f"--config-file={path}"


@pytest.fixture(scope="module")
def watched(node: Node, env: dict[str, str], flags: tuple[str, ...]) -> Iterator[Plugin]:
    """A plugin, which some tests start again."""
    with plugin(node, env, *flags) as found:
        yield found


@pytest.fixture
def one(watched: Plugin, host: Host, env: dict[str, str]) -> Iterator[Plugin]:
    """The plugin, while all devices are well; the next driver heals what a test has done to them."""
    has(watched, everything(host))
    watches(watched, SECONDS)
    yield watched
    watched.node.remove()
    host.hang(None)
    for gpu in range(3):
        host.find(gpu)
        host.recovery(gpu, -1)  # as a driver that has no such word
    reload(host, env)


def reload(host: Host, env: dict[str, str]) -> None:
    """Load the driver again, and wait until the plugin has had it looked at."""
    snapshot = Path(env["GPUSHIM_STATE"], "inventory.json")
    before = snapshot.stat().st_ino, snapshot.stat().st_mtime_ns
    host.modify = not host.modify  # a module with other parameters is another one
    host.update()
    assert until(lambda: (snapshot.stat().st_ino, snapshot.stat().st_mtime_ns) != before, SECONDS)


def xid(host: Host, gpu: int) -> str:
    """Return what the kernel's log has of an XID of now."""
    now = round(1e6 * time.clock_gettime(time.CLOCK_MONOTONIC))
    return f"4,1,{now},-;NVRM: Xid (PCI:{host.gpus[gpu].pci.rpartition('.')[0]}): {SILENT}, pid=1, name=x\n"


def replicas(host: Host, gpu: int) -> set[str]:
    """Return the ids of what there is of a GPU: all replicas of it, or of its MIG instances."""
    found = host.gpus[gpu]
    return {f"{uuid}::{number}" for uuid in [mig.uuid for mig in found.mig] or [found.uuid] for number in range(2)}


def everything(host: Host) -> set[str]:
    """Return all ids of the host."""
    return {one for gpu in host.gpus for one in replicas(host, gpu.index)}


def given(node: Node) -> set[str]:
    """Return the ids that kubelet would give out."""
    return {one for ids in node.everything().values() for one in ids}


def has(one: Plugin, ids: set[str], seconds: float = SECONDS) -> None:
    """Wait until kubelet would give out these ids, and no others, of the process that runs."""
    there = until(lambda: one.registered(GPU) and given(one.node) == ids, seconds)
    assert there, f"{sorted(given(one.node) ^ ids)}\n{one.said()[-3000:]}"


def falls(one: Plugin, host: Host, gpu: int) -> float:
    """Let a GPU fall off the bus, and return the seconds until kubelet has nothing of it any more."""
    wanted = given(one.node) - replicas(host, gpu)
    began = time.monotonic()
    host.xid(gpu, OFF_THE_BUS)
    while given(one.node) != wanted:
        time.sleep(0.01)  # it answers 100 times a second
        assert time.monotonic() - began < SECONDS, one.said()[-3000:]
    return time.monotonic() - began


def test_an_xid_marks_all_that_there_is_of_its_gpu_at_once(one: Plugin, host: Host) -> None:
    took = [falls(one, host, gpu) for gpu in range(3)]
    print(f"kubelet knew after {took}")
    assert sorted(took)[1] < AT_ONCE  # the machine may be busy once, and a look at the host come just then
    assert not given(one.node)


def test_the_status_of_a_pod_says_that_its_device_is_unhealthy(one: Plugin, host: Host) -> None:
    one.node.pod("holder", {MIG: 1})
    (held,) = one.node.held("holder")[MIG]
    assert until(lambda: one.node.healths("holder") == {held: "Healthy"}, SECONDS)
    (gpu,) = [number for number in range(3) if held in replicas(host, number)]
    began = time.monotonic()
    falls(one, host, gpu)
    assert until(lambda: one.node.healths("holder") == {held: "Unhealthy"}, SECONDS), one.node.healths("holder")
    print(f"the pod's status said so after {time.monotonic() - began:.2f} s")


def test_a_storm_of_one_gpus_xids_hides_no_other_ones(one: Plugin, host: Host) -> None:
    """Pods' programs cause such XIDs at will."""
    for _ in range(STORM):
        host.xid(0, EXCEPTION)
    falls(one, host, 1)
    assert given(one.node) == everything(host) - replicas(host, 1)
    assert "writes without end" not in one.said()


@pytest.mark.parametrize("told", ["log", "memory errors"])
def test_what_happened_while_nobody_listened_is_found(one: Plugin, host: Host, told: str) -> None:
    """In the kernel's log where that can be read; what NVML knows in any case."""
    one.stop(9)
    log = Path(host.root, "dev", "kmsg")
    try:
        if told == "memory errors":
            host.figure(1, ecc_uncorrected_volatile=1)
        else:
            log.write_text(xid(host, 1))
        one.start()
        has(one, everything(host) - replicas(host, 1))
    finally:
        log.unlink(missing_ok=True)
        host.figure(1, ecc_uncorrected_volatile=0)


def test_a_lost_gpu_is_noticed_without_an_event_and_so_is_its_return(one: Plugin, host: Host) -> None:
    began = time.monotonic()
    host.lose(0)
    has(one, everything(host) - replicas(host, 0), LOST)
    print(f"lost for kubelet after {time.monotonic() - began:.1f} s")
    host.find(0)
    has(one, everything(host))


def test_a_restart_heals_nothing_and_a_new_driver_does(one: Plugin, host: Host, env: dict[str, str]) -> None:
    falls(one, host, 2)
    falls(one, host, 0)
    one.stop()
    one.start()
    has(one, replicas(host, 1))
    one.stop(9)
    one.start()
    has(one, replicas(host, 1))
    reload(host, env)
    has(one, everything(host))


def test_a_gpu_whose_calls_hang_is_marked_and_costs_the_others_nothing(
    one: Plugin, host: Host, env: dict[str, str]
) -> None:
    """Neither an Allocate nor a look at the host: one that waits already when that becomes known, and a later one."""
    others, config = everything(host) - replicas(host, 0), Path(env["GPUSHIM_CONFIG"])

    def looked_at() -> bool:
        assert others <= given(one.node), one.said()[-3000:]
        found = json.loads(Path(env["GPUSHIM_STATE"], "inventory.json").read_text())
        return found["stamp"]["config"] == trust.identity(str(config)) and bool(found["gpus"][0]["problem"])

    def look() -> None:
        config.write_text(f"{config.read_text()}# a comment\n")
        assert until(looked_at, SECONDS), one.said()[-3000:]
        has(one, others)

    before = allocated(one.node, f"{host.gpus[1].uuid}::0", 5)[0]
    host.hang(0)
    look()
    took = allocated(one.node, f"{host.gpus[1].uuid}::0", 20)
    print(f"an Allocate took {1000 * before:.1f} ms at best before, and {1000 * took[0]:.1f} ms meanwhile")
    assert took[len(took) // 2] < ANSWER
    look()
    assert one.node.pod("beside", {GPU: 1}).container
    assert others.issuperset(one.node.held("beside")[GPU])
    host.hang(None)
    has(one, everything(host))
