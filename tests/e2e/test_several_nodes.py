"""The chart on several nodes of one cluster: each serves, labels and measures its own GPUs, one after the other is
upgraded, and one that dies takes nothing of the others with it.

One story, in the order of the tests. Each node has a kubelet, an engine and simulated GPUs of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import boots, helm, image, kube, trees
from e2e.allocated import built
from e2e.definitions import definition
from e2e.deployed import CHART, GPU, IMAGE, features, labelled, metrics, plugin, rolled_out, serves
from e2e.fleet import COMPONENTS, Fleet, fleet, serving
from e2e.helm import NAMESPACE
from e2e.kube import NAME
from e2e.profiles import LABEL, PROFILES
from fakehost import H100

OTHER = "other"
ONE_BY_ONE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
VALUES: helm.Values = {
    "image": IMAGE,
    "config": {"map": PROFILES, "default": "whole"},
    "labels": {"publish": "node-feature", "interval": 1},
    "updateStrategy": ONE_BY_ONE,
}
NEXT = {**VALUES, "image": {**IMAGE, "tag": "next"}}


@pytest.fixture(scope="module")
def nodes(debian_image: Path, busybox_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two nodes, of two A100 and of three H100, with the chart on both."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    hosts = {NAME: built(tmp_path_factory.mktemp(NAME), 2), OTHER: built(tmp_path_factory.mktemp(OTHER), [H100] * 3)}
    with fleet(hosts, debian_image, pause, image.archive()) as found:
        found.cluster.apply(definition("nodefeatures"))
        found.cluster.kubectl("create", "namespace", NAMESPACE)
        found.cluster.helm("install", CHART, "gpushim", VALUES)
        yield found


def test_each_node_serves_its_own(nodes: Fleet) -> None:
    for name, host in nodes.hosts.items():
        serves(nodes.cluster, {GPU: len(host.gpus)}, name)
        assert labelled(nodes.cluster, name)
        nodes.cluster.wait_for(lambda: nodes.labels(name), "there is a NodeFeature")  # noqa: B023 - called here
        found = nodes.labels(name)
        assert found["nvidia.com/gpu.product"] == host.gpus[0].model.replace(" ", "-")
        assert found["nvidia.com/gpu.count"] == str(len(host.gpus))
        assert found["nvidia.com/gpu.memory"] == str(host.gpus[0].memory)


def test_a_label_leads_to_the_right_gpu(nodes: Fleet) -> None:
    nodes.discover()
    for name in nodes.hosts:
        nodes.pod(f"{name}1", name)
    for name in nodes.hosts:
        assert nodes.holds(f"{name}1")[0] == name


def test_metrics_are_of_the_node(nodes: Fleet) -> None:
    for name, host in nodes.hosts.items():
        rows = metrics(nodes.cluster, name)["gpushim_gpu_memory_total_bytes"]
        assert {row["UUID"]: value for row, value in rows} == {gpu.uuid: gpu.memory << 20 for gpu in host.gpus}
        assert {row["Hostname"] for row, _ in rows} == {name}
        assert [row["pod"] for row, _ in rows if row.get("pod")] == [f"{name}1"]
        known = {row["pod"] for row in json.loads(nodes.nodes[name].run("gpushim ps --format=json"))}
        assert [f"{each}1" in known for each in nodes.hosts] == [each == name for each in nodes.hosts]


def test_a_profile_on_one_node(nodes: Fleet) -> None:
    nodes.cluster.kubectl("label", "node", OTHER, f"{LABEL}=shared")
    serves(nodes.cluster, {GPU: 1 + 2 * 3}, OTHER)  # the GPU of a pod stays whole until that ends
    nodes.cluster.wait_for(lambda: nodes.labels(OTHER)["nvidia.com/gpu.replicas"] == "3", "its labels say so")
    assert nodes.cluster.allocatable()[GPU] == "2"
    assert nodes.labels(NAME)["nvidia.com/gpu.replicas"] == "1"
    nodes.cluster.kubectl("label", "node", OTHER, f"{LABEL}-")
    serves(nodes.cluster, {GPU: 3}, OTHER)


def test_an_upgrade_goes_from_node_to_node(nodes: Fleet) -> None:
    pods = [f"{name}1" for name in nodes.hosts]
    before, held = nodes.containers(*pods), [nodes.holds(pod) for pod in pods]
    old = {name: plugin(nodes.cluster, name)["metadata"]["name"] for name in nodes.hosts}
    with nodes.watching() as rows:
        nodes.cluster.helm("upgrade", CHART, "gpushim", NEXT)
        rolled_out(nodes.cluster)
    for component in COMPONENTS:
        without = nodes.without(rows, component)[len(nodes.nodes) :]  # after the pods that were there
        assert sorted({*map(len, without)}) == [0, 1], without
        assert set().union(*without) == nodes.hosts.keys()
    assert (nodes.containers(*pods), [nodes.holds(pod) for pod in pods]) == (before, held)
    assert all(plugin(nodes.cluster, name)["metadata"]["name"] != old[name] for name in nodes.hosts)
    for name, host in nodes.hosts.items():
        serves(nodes.cluster, {GPU: len(host.gpus)}, name)


def state(nodes: Fleet, name: str) -> str:
    """Return whether a node is ready: True, False or Unknown."""
    rows = nodes.cluster.get("node", name)["status"]["conditions"]
    return next(str(row["status"]) for row in rows if row["type"] == "Ready")


def serving_on(nodes: Fleet) -> dict[str, str]:
    """Return the pods of the Deployment that are to stay, with their nodes."""
    rows = nodes.cluster.pods("--selector=app=serving").items()
    return {name: row["spec"].get("nodeName", "") for name, row in rows if "deletionTimestamp" not in row["metadata"]}


def test_a_node_dies(nodes: Fleet) -> None:
    """Its GPUs are given to nobody, its labels stay, its metrics are gone; the other node has what it had."""
    nodes.cluster.apply(serving(OTHER))
    nodes.cluster.wait_for(lambda: OTHER in serving_on(nodes).values(), "a pod is there")
    (old,) = serving_on(nodes)
    assert nodes.holds(old)[0] == OTHER
    labels, address = nodes.labels(OTHER), plugin(nodes.cluster, OTHER)["status"]["podIP"]
    held = nodes.holds(f"{NAME}1")
    boots.off(nodes.nodes[OTHER])
    nodes.cluster.wait_for(lambda: state(nodes, OTHER) == "Unknown", "the node is not ready")
    nodes.pod("waiting", OTHER)
    nodes.cluster.wait_for(lambda: NAME in serving_on(nodes).values(), "the pod has gone elsewhere")
    (new,) = serving_on(nodes)
    assert {nodes.holds(new), held} == {(NAME, gpu.uuid) for gpu in nodes.hosts[NAME].gpus}
    assert nodes.holds(f"{NAME}1") == held
    (why,) = (row["message"] for row in nodes.cluster.pods()["waiting"]["status"]["conditions"] if "message" in row)
    assert "untolerated taint" in why
    assert nodes.labels(OTHER) == labels
    assert labelled(nodes.cluster, OTHER)
    assert kube.fetch(nodes.cluster.place, f"http://{address}:9400/metrics") == ""
    assert {row["Hostname"] for row, _ in metrics(nodes.cluster)["gpushim_gpu_figures_up"]} == {NAME}


def test_a_node_comes_back(nodes: Fleet) -> None:
    """With nothing in memory: all that the node had is there again, and no GPU is given twice."""
    boots.on(nodes.nodes[OTHER])
    nodes.cluster.wait_for(lambda: state(nodes, OTHER) == "True", "the node is ready")
    rolled_out(nodes.cluster)
    serves(nodes.cluster, {GPU: 3}, OTHER)
    assert nodes.holds("waiting")[0] == OTHER
    assert labelled(nodes.cluster, OTHER)
    assert nodes.labels(OTHER)["nvidia.com/gpu.count"] == "3"
    rows = metrics(nodes.cluster, OTHER)["gpushim_gpu_figures_up"]
    assert {row["UUID"] for row, _ in rows} == {gpu.uuid for gpu in nodes.hosts[OTHER].gpus}
    assert len(features(nodes.cluster)) == len(nodes.hosts)
    for node in nodes.nodes.values():
        given = [uuid for ids in node.node.everybody().values() for one in ids.values() for uuid in one]
        assert len(given) == len({*given}), given
