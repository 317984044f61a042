"""Which devices a real kubelet has by the plugin: MIG, exclusion, NUMA, distance, and a GPU that vanishes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import fakehost
from e2e import trees
from e2e.engines import SYSTEM_PATH, run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import SECONDS, plugin
from fakehost import Host
from fakehost.gpus import MigRequest

GPU = "nvidia.com/gpu"
COUNT = 6
PAIRS = ((0, 5), (1, 4), (2, 3))  # by NVLink, and each across NUMA nodes
ALIKE: dict[int, list[MigRequest]] = {index: ["1g.5gb", "1g.5gb"] for index in range(COUNT)}
MIXED: dict[int, list[MigRequest]] = {1: ["3g.20gb", "1g.10gb+me"], 4: ["1g.5gb", (1, 0, "1c.3g.20gb")]}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Six GPUs, of which pairs are linked."""
    root = tmp_path_factory.mktemp("resources") / "root"
    host = fakehost.build(str(root), COUNT, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    for one, other in PAIRS:
        host.gpus[one].links = {other: 2}
    host.update()
    return host


@pytest.fixture
def node(node: Node, host: Host) -> Iterator[Node]:
    """The node, which has neither pods nor MIG instances after the test."""
    gpus = list(host.gpus)
    node.alone()
    yield node
    node.remove()
    host.gpus[:] = gpus
    host.behave()
    divide(host, {})


def refresh(env: dict[str, str]) -> None:
    """Look at the host, as the unit of a node does now and then."""
    run([str(trees.TOP / "bin" / "gpushim"), "refresh"], check=False, env={"PATH": SYSTEM_PATH, **env})


def divide(host: Host, migs: dict[int, list[MigRequest]]) -> None:
    """Divide these GPUs, and no others."""
    for gpu in host.gpus:
        gpu.mig_mode, gpu.mig = (0, 0), []
    for index, devices in migs.items():
        fakehost.gpus.set_mig(host.gpus[index], devices)
    host.update()


def names(host: Host) -> dict[str, str]:
    """Return the UUID of each GPU by its index, and of each MIG instance by index:profile."""
    found = {str(gpu.index): gpu.uuid for gpu in host.gpus}
    return found | {f"{gpu.index}:{mig.profile}:{mig.gi}": mig.uuid for gpu in host.gpus for mig in gpu.mig}


ALL = "0 1 2 3 4 5"


@pytest.mark.parametrize(
    ("migs", "flags", "wanted"),
    [
        (MIXED, (), {"gpu": ALL}),
        (
            ALIKE,
            ("--mig-strategy=single",),
            {"gpu": " ".join(f"{index}:1g.5gb:{gi}" for index in range(COUNT) for gi in (7, 8))},
        ),
        (
            MIXED,
            ("--mig-strategy=mixed",),
            {
                "gpu": "0 2 3 5",
                "mig-3g.20gb": "1:3g.20gb:1",
                "mig-1g.10gb.me": "1:1g.10gb+me:7",
                "mig-1g.5gb": "4:1g.5gb:7",
            },
        ),
        ({}, ("--exclude=0,{2},{pci}",), {"gpu": "1 4 5"}),
    ],
    ids=["none", "single", "mixed", "excluded"],
)
def test_what_kubelet_counts(
    node: Node,
    host: Host,
    env: dict[str, str],
    migs: dict[int, list[MigRequest]],
    flags: tuple[str, ...],
    wanted: dict[str, str],
) -> None:
    divide(host, migs)
    refresh(env)
    known = names(host)
    texts = [flag.replace("{2}", known["2"]).replace("{pci}", host.gpus[3].pci) for flag in flags]
    with plugin(node, env, *texts) as running:
        for name, devices in wanted.items():
            running.offers("nvidia.com/" + name, {known[one] for one in devices.split()})
        assert {name for name, ids in node.everything().items() if ids} == {"nvidia.com/" + name for name in wanted}
        # kubelet writes its checkpoint after it has taken a list in.
        assert until(
            lambda: all(
                sorted(node.checkpoint()[0].get("nvidia.com/" + name, [])) == node.allocatable("nvidia.com/" + name)
                for name in wanted
            ),
            SECONDS,
        )
        assert running.stop() == 0
        said = [line for line in running.said().splitlines() if "1c.3g.20gb" in line]
        assert bool(said) == (migs is MIXED and "gpu" in wanted and flags[:1] == ("--mig-strategy=mixed",))


def test_kubelet_takes_linked_gpus_and_knows_their_numa_nodes(node: Node, host: Host, env: dict[str, str]) -> None:
    with plugin(node, env) as running:
        running.offers(ids={gpu.uuid for gpu in host.gpus})
        places = {gpu.uuid: gpu.index for gpu in host.gpus}
        pods = ["first", "second", "third"]
        for name in pods:
            node.create(name, {GPU: 2})
        given = [sorted(places[one] for one in node.held(name)[GPU]) for name in pods if node.wait(name).container]
    assert sorted(given) == [list(pair) for pair in PAIRS]
    for entry in node.checkpoint()[1]:
        assert {int(numa): [places[one] % 2 for one in ids] for numa, ids in entry["DeviceIDs"].items()} == {
            0: [0],
            1: [1],
        }


def test_a_gpu_that_vanishes_is_dropped_when_no_pod_has_it(node: Node, host: Host, env: dict[str, str]) -> None:
    every = {gpu.uuid for gpu in host.gpus}
    with plugin(node, env) as running:
        running.offers(ids=every)
        pod = node.pod("holder", {GPU: COUNT - 1})
        assert pod.container, f"{pod.why}\n{running.said()}"
        held = set(node.held("holder")[GPU])
        gone = {next(iter(held)), *every - held}  # one that the pod has, and the one that is free
        host.gpus[:] = [gpu for gpu in host.gpus if gpu.uuid not in gone]
        host.update()
        running.offers(ids=every - gone)
        assert counts(node, COUNT, COUNT - 2)  # dropped at once, one that is just allocated makes kubelet crash
        assert until(lambda: node.healths("holder").get(*held & gone) == "Unhealthy", SECONDS)
        assert counts(node, COUNT - 1, COUNT - 2), running.said()
        node.remove("holder")
        assert counts(node, COUNT - 2, COUNT - 2), running.said()
        assert "Requested: 5, Available: 4" in node.pod("too-many", {GPU: COUNT - 1}).why
        assert "panic" not in node.said()


def counts(node: Node, listed: int, well: int) -> bool:
    """Wait until kubelet has last read a list of so many devices, so many of them well."""

    def read() -> bool:
        *_, last = re.findall(r"totalCount=(\d+) healthyCount=(\d+)", node.log.read_text(errors="replace"))
        return bool(last == (str(listed), str(well)))

    return until(read, SECONDS)
