"""The chart in a real cluster: GPU nodes serve pods, tell labels and metrics, are upgraded under load, and let go.

One story on one cluster, in the order of the tests. The host's GPUs are simulated; all else is what a cluster has.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

import fakehost
from e2e import cluster_lines, helm, image, lines, node, pages, workload
from e2e.allocated import built
from e2e.definitions import definition
from e2e.deployed import (
    BIG,
    CHART,
    GPU,
    IMAGE,
    REPOSITORY,
    SMALL,
    features,
    labelled,
    metrics,
    plugin,
    plugins,
    rolled_out,
    serves,
    true_labels,
)
from e2e.dradriver import driver
from e2e.expect import CONTROL_NODES, GPU_MAJOR, sees_exactly
from e2e.helm import NAMESPACE
from e2e.kube import NAME
from e2e.nodefiles import FEATURES, before, nothing_is_left
from e2e.plane import Cluster
from e2e.profiles import LABEL, PROFILES
from fakehost import Host

__all__ = ["before"]

README, KUBERNETES = pages.TOP / "README.md", pages.TOP / "docs/kubernetes.md"
OPERATING = pages.TOP / "docs/operating.md"
DRIVER = "gpu.nvidia.com"
ALL = {GPU: 2, BIG: 1, SMALL: 1}
VALUES: helm.Values = {
    "image": IMAGE,
    "settings": {"mig-strategy": "mixed"},
    "config": {"map": PROFILES, "default": "whole"},
    "labels": {"publish": "file", "interval": 1},
}
NEXT = {**VALUES, "image": {**VALUES["image"], "tag": "next"}, "labels": {"publish": "node-feature", "interval": 1}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    return built(tmp_path_factory.mktemp("cluster"), 3, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster on whose node the image has two more names."""
    for name in (f"{REPOSITORY}:next", image.NAME.replace("docker.io/library", "registry.example.org")):
        cluster.node.engine.ctr("images", "tag", image.NAME, name, namespace="k8s.io")
    return cluster


def test_the_quick_start(cluster: Cluster, host: Host, before: dict[str, str]) -> None:
    """README's lines from nothing to a pod with a GPU, and back to nothing; images are on the node already."""
    folder = cluster.work / "typed"
    folder.mkdir()
    assert helm.package(CHART, folder).name in README.read_text()
    (pod,) = (block.text for block in pages.blocks(KUBERNETES.read_text()) if block.info == "yaml")
    (folder / "pod.yaml").write_text(pod.replace("image: debian", f"image: {workload.IMAGE}"))
    for line in pages.commands(README, "sh cluster"):
        output = cluster_lines.do(cluster, folder, line)
        if line == "kubectl logs gpu":
            (uuid,) = lines.uuids(output)
            assert uuid in {gpu.uuid for gpu in host.gpus}
    nothing_is_left(cluster, before)
    gone = (("namespace", NAMESPACE), ("runtimeclass", "nvidia"), ("clusterrole", f"{NAMESPACE}-gpushim-node"))
    assert not any(cluster.get(*words) for words in gone)
    assert not labelled(cluster)


def test_a_node_without_a_device_is_left_alone(cluster: Cluster, host: Host, before: dict[str, str]) -> None:
    """Helm's wait ends; gpushim-node is Ready and says why; the plugin has no pod; the engine goes on."""
    assert before
    node.without_device(host)
    engine = cluster.containerd.process
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.helm("install", CHART, "gpushim", VALUES, wait="watcher", timeout=60)
    rolled_out(cluster)
    logs = ("logs", "daemonset/gpushim-node", f"--namespace={NAMESPACE}", "--container=keep")
    line = "gpushim-node: this node has no NVIDIA device; waiting for one, then gpushim is installed\n"
    cluster.wait_for(lambda: cluster.kubectl(*logs) == line, "it says so")
    assert [row["status"]["phase"] for row in cluster.pods(namespace=NAMESPACE).values()] == ["Running"]
    assert not labelled(cluster)
    assert cluster.run("ls /usr/bin/gpushim /var/lib/gpushim/node.json 2>/dev/null || true") == ""
    assert cluster.containerd.process == engine


def test_a_node_serves_gpus(cluster: Cluster, host: Host) -> None:
    """As soon as it has some; what is on the node waits for no API server, and the plugin comes with the label."""
    kind, name = "clusterrolebinding", f"{NAMESPACE}-gpushim-node"
    rights = cluster.get(kind, name)
    rights["metadata"] = {key: rights["metadata"][key] for key in ("name", "labels", "annotations")}
    cluster.kubectl("delete", kind, name)
    node.with_device(host)
    logs = ("logs", "daemonset/gpushim-node", f"--namespace={NAMESPACE}", "--container=label")
    cluster.wait_for(lambda: "; retrying" in cluster.kubectl(*logs), "it is refused")
    assert len(json.loads(cluster.run("gpushim list --format=json"))) == len(host.gpus)
    assert not plugins(cluster)
    cluster.apply(rights)
    cluster.wait_for(lambda: labelled(cluster), "it may")
    cluster.wait_for(lambda: plugins(cluster), "the plugin comes")
    rolled_out(cluster)
    serves(cluster, ALL)


def test_a_pod_gets_a_gpu(cluster: Cluster, host: Host) -> None:
    workload.create(cluster, "one", {GPU: 1})
    workload.running(cluster, "one")
    (held,) = cluster.node.held("one")[GPU]
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == held)
    sees_exactly(workload.look(cluster, "one", host, [index]), host, [index])


def test_a_pod_gets_a_mig_instance(cluster: Cluster, host: Host) -> None:
    workload.create(cluster, "slice", {SMALL: 1})
    workload.running(cluster, "slice")
    parent, (big, small) = host.gpus[0], host.gpus[0].mig
    assert cluster.node.held("slice") == {SMALL: [small.uuid]}
    report = json.loads(workload.look(cluster, "slice", host, [0]))
    caps = (fakehost.gi_cap(parent.minor, small.gi), fakehost.ci_cap(parent.minor, small.gi, small.ci))
    nodes = [*CONTROL_NODES, f"/dev/nvidia{parent.minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
    assert report["nodes"] == dict.fromkeys(sorted(nodes), "ENXIO")
    assert report["made"] == {f"{GPU_MAJOR}:{gpu.minor}": "EPERM" for gpu in host.gpus[1:]}
    assert small.uuid in report["nvidia-smi"]
    assert big.uuid not in report["nvidia-smi"]


def test_labels_tell_what_the_node_has(cluster: Cluster, host: Host) -> None:
    true_labels(dict(row.split("=", 1) for row in cluster.run(f"cat {FEATURES}").splitlines()), host)


def test_metrics_tell_who_has_what(cluster: Cluster, host: Host) -> None:
    found = metrics(cluster)
    healthy = {
        row["resource"]: value for row, value in found["gpushim_device_plugin_devices"] if row["health"] == "healthy"
    }
    assert healthy == ALL
    totals = found["gpushim_gpu_memory_total_bytes"]
    whole = {row["UUID"]: value for row, value in totals if not row.get("GPU_I_ID")}
    assert whole == {gpu.uuid: gpu.memory << 20 for gpu in host.gpus}
    (held,) = cluster.node.held("one")[GPU]
    users = {row["pod"]: row for row, _ in totals if row.get("pod")}
    assert sorted(users) == ["one", "slice"]
    assert (users["one"]["UUID"], users["one"]["namespace"], users["one"]["container"]) == (held, "default", "main")
    assert (users["slice"]["UUID"], users["slice"]["GPU_I_PROFILE"]) == (host.gpus[0].uuid, "1g.5gb")


def test_people_are_told_the_pods(cluster: Cluster, host: Host) -> None:
    rows = {row["pod"]: row for row in json.loads(cluster.run("gpushim ps --format=json"))}
    (held,) = cluster.node.held("one")[GPU]
    (index,) = (str(gpu.index) for gpu in host.gpus if gpu.uuid == held)
    assert (rows["one"]["namespace"], rows["one"]["devices"]) == ("default", [index])
    assert rows["slice"]["devices"] == ["0:1"]
    (pod,) = cluster.pods("--selector=app.kubernetes.io/component=node", namespace=NAMESPACE).values()
    doctor, status, ps, explain = (
        cluster.kubectl(*shlex.split(line)[1:], check=False)
        for line in pages.commands(OPERATING, "sh cluster")
        for line in [line.replace("NODE_POD", pod["metadata"]["name"]).replace("default/gpu", "default/one")]
    )
    assert ", 0 broken;" in doctor, doctor
    assert f"{GPU} " in status, status
    assert re.search(rf"^\w+ +default +one .* {index} +spec$", ps, re.MULTILINE), ps
    assert re.search(rf"{GPU} +{held} ", explain), explain
    said = cluster.run("gpushim explain --pod default/one")
    assert re.search(rf"{GPU} +{held} +variable NVIDIA_VISIBLE_DEVICES={held}", said), said


def test_the_nodes_label_picks_a_profile(cluster: Cluster, host: Host) -> None:
    (held,) = cluster.node.held("one")[GPU]
    cluster.kubectl("label", "node", NAME, f"{LABEL}=shared")
    serves(cluster, {**ALL, GPU: 1 + 3})  # the GPU of a pod stays whole until that ends
    workload.create(cluster, "sharer", {GPU: 1})
    workload.create(cluster, "other", {GPU: 1})
    workload.running(cluster, "sharer", "other")
    (index,) = (gpu.index for gpu in host.gpus[1:] if gpu.uuid != held)
    for name in ("sharer", "other"):
        sees_exactly(workload.look(cluster, name, host, [index]), host, [index])
    workload.remove(cluster, "sharer", "other")
    cluster.kubectl("label", "node", NAME, f"{LABEL}-")
    serves(cluster, ALL)


def claimed(device: str) -> tuple[dict[str, Any], ...]:
    """Return what a driver of DRA, and who wants its only device, have in the API."""
    kinds, version = ("DeviceClass", "ResourceSlice", "ResourceClaim"), "resource.k8s.io/v1"
    pool = {"name": NAME, "generation": 1, "resourceSliceCount": 1}
    specs: tuple[dict[str, Any], ...] = (
        {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
        {"nodeName": NAME, "driver": DRIVER, "pool": pool, "devices": [{"name": device}]},
        {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "claimed"}}]}},
    )
    own = {"apiVersion": version, "metadata": {"name": "claimed"}}
    wants = workload.spec({})
    wants["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "claimed"}]
    wants["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimed"}, "spec": wants}
    return (*({**own, "kind": kind, "spec": spec} for kind, spec in zip(kinds, specs)), pod)


def test_a_claim_is_shown_as_what_gave_a_gpu(cluster: Cluster, host: Host) -> None:
    """While its driver listens the plugin gives out none, and all again when that is gone."""
    (held,) = cluster.node.held("one")[GPU]
    (free,) = (gpu for gpu in host.gpus[1:] if gpu.uuid != held)
    device = f"gpu-{free.minor}"
    log = cluster.node.work / "driver.log"
    with driver(cluster.node.kubelet_dir, DRIVER, log, device=(NAME, device, f"nvidia.com/gpu={free.uuid}")):
        cluster.apply(*claimed(device))
        workload.running(cluster, "claimed")
        serves(cluster, dict.fromkeys(ALL, 0))
        rows = {row["pod"]: row for row in json.loads(cluster.run("gpushim ps --format=json"))}
        assert (rows["claimed"]["devices"], rows["one"]["claims"]) == ([str(free.index)], [])
        assert [(one["name"], one["driver"]) for one in rows["claimed"]["claims"]] == [("claimed", DRIVER)]
        said = cluster.run("gpushim explain --pod default/claimed")
        assert f"claim default/claimed of the DRA driver {DRIVER}, device {device}" in said
        users = {row["pod"]: row for row, _ in metrics(cluster)["gpushim_gpu_memory_total_bytes"] if row.get("pod")}
        told = {key: users["claimed"][key] for key in ("UUID", "claim", "driver", "container")}
        assert told == {"UUID": free.uuid, "claim": "claimed", "driver": DRIVER, "container": "main"}
        workload.remove(cluster, "claimed")
        cluster.kubectl("delete", "resourceclaim,resourceslice,deviceclass", "claimed")
    serves(cluster, ALL)


def test_an_upgrade_loses_nothing(cluster: Cluster, host: Host) -> None:
    cluster.apply(definition("nodefeatures"))
    old, held = plugin(cluster)["metadata"]["name"], cluster.node.everybody()
    with workload.watched(cluster) as seen:
        cluster.apply(workload.job("load", {GPU: 1}, 1000))
        cluster.wait_for(lambda: workload.succeeded(cluster, "load"), "a pod has come and gone")
        cluster.helm("upgrade", CHART, "gpushim", NEXT)
        rolled_out(cluster)
        after = workload.succeeded(cluster, "load") + 2
        cluster.wait_for(lambda: workload.succeeded(cluster, "load") >= after, "pods come and go after it")
        assert {resource: set(seen.numbers(resource)) for resource in ALL} == {
            resource: {number} for resource, number in ALL.items()
        }
    cluster.kubectl("delete", "job", "load")
    assert plugin(cluster)["metadata"]["name"] != old
    assert {name: cluster.node.held(name) for name in ("one", "slice")} == {
        name: held[name] for name in ("one", "slice")
    }
    asked = json.loads(cluster.run("gpushim device-plugin status --format=json"))
    assert [row["name"] for row in asked["resources"]] == [*ALL]  # the new one has the socket
    cluster.wait_for(lambda: features(cluster), "there is a NodeFeature")
    (feature,) = features(cluster)
    true_labels(feature["spec"]["labels"], host)
    owners = [one["name"] for one in feature["metadata"]["ownerReferences"]]
    assert (owners, feature["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"]) == (
        [plugin(cluster)["metadata"]["name"]],
        NAME,
    )


def test_nothing_is_left(cluster: Cluster, before: dict[str, str]) -> None:
    workload.remove(cluster, "one", "slice")
    cluster.helm("upgrade", CHART, "gpushim", {**NEXT, "uninstall": True})
    rolled_out(cluster)
    assert not labelled(cluster)
    cluster.helm("uninstall", "gpushim")
    cluster.wait_for(lambda: not cluster.pods(namespace=NAMESPACE), "all pods are gone")
    cluster.wait_for(lambda: not features(cluster), "the NodeFeature is gone")
    nothing_is_left(cluster, before)
    assert cluster.get("runtimeclass", "nvidia") == {}
