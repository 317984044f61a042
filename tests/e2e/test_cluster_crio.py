"""The chart in a cluster on CRI-O: what its installer writes and restarts, pods with a GPU, upgrade, removal.

One story on one cluster, in the order of the tests. How a cluster on containerd differs is in test_cluster.py, which
has all that does not depend on the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from e2e import crio, crioplane, helm, image, trees, upstream, workload
from e2e.allocated import built
from e2e.deployed import CHART, GPU, labelled, rolled_out, serves
from e2e.expect import sees_exactly, sees_nothing
from e2e.helm import NAMESPACE
from e2e.nodefiles import before, nothing_is_left
from e2e.plane import Cluster
from fakehost import Host

__all__ = ["before"]

OURS = "/etc/crio/crio.conf.d/99-gpushim.toml"
PACKAGED = "/etc/crio/crio.conf.d/10-crio.conf"
KEPT = "grep -l _done_default_ /opt/gpushim-tests/*/root/overlay-containers/*/userdata/config.json || true"
# As the node has it after `podman load`. The class of highest priority lowers oom_score_adj, which root may not do
# on a machine without CAP_SYS_RESOURCE, and CRI-O has no setting that leaves it.
VALUES: helm.Values = {
    "image": {"repository": image.NAME.rpartition(":")[0], "pullPolicy": "Never"},
    "priorityClassName": "",
}
NEXT: helm.Values = {
    **VALUES,
    "image": {**VALUES["image"], "tag": "next"},
    "runtimeClassName": "gpu",
    "runtimeClass": {"handler": "gpu"},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs."""
    return built(tmp_path_factory.mktemp("crio"), 3)


@pytest.fixture(scope="module")
def cluster(
    host: Host, debian_image: Path, busybox_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster on CRI-O, whose settings leave monitors in CRI-O's own cgroup."""
    upstream.layer(upstream.CRIO)
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    own = image.NAME.rpartition("/")[2]
    archives = {"debian:local": debian_image, "pause:local": pause, own: image.archive()}
    folder = tmp_path_factory.mktemp("images")
    images = crioplane.store(folder / "store", archives, f"{VALUES['image']['repository']}:next")
    with crioplane.cluster(images, monitor="") as found:
        found.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{host.root}"\n')
        yield found


def held(cluster: Cluster, host: Host, name: str) -> int:
    """Return the index of the GPU that kubelet says a pod has."""
    (uuid,) = cluster.node.held(name)[GPU]
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == uuid)
    return index


def sees_its_own(cluster: Cluster, host: Host, name: str) -> None:
    """Assert that a pod sees the one GPU that kubelet says it has."""
    index = held(cluster, host, name)
    sees_exactly(workload.look(cluster, name, host, [index]), host, [index])


def test_the_installer_configures_crio(cluster: Cluster, host: Host, before: dict[str, str]) -> None:
    assert before
    cluster.kubectl("create", "namespace", NAMESPACE)
    engine = cluster.containerd.process
    cluster.helm("install", CHART, "gpushim", VALUES, wait="watcher", timeout=90)
    rolled_out(cluster)
    serves(cluster, {GPU: len(host.gpus)})
    assert labelled(cluster)
    assert cluster.containerd.process != engine
    written = cluster.run(f"cat {OURS}")
    assert 'runtime_path = "/usr/bin/gpushim-runtime"' in written
    assert cluster.run("gpushim configure crio --verify") == "verified: CRI-O has the runtime nvidia\n"
    found = json.loads(cluster.run("gpushim doctor crio --format=json", check=False))["findings"]
    assert not [each for each in found if each["verdict"] == "broken"]


def test_a_pod_gets_its_gpu_and_no_other(cluster: Cluster, host: Host) -> None:
    workload.create(cluster, "one", {GPU: 1})
    workload.create(cluster, "none", {})
    workload.running(cluster, "one", "none")
    sees_its_own(cluster, host, "one")
    sees_nothing(workload.look(cluster, "none", host, []))


def test_people_are_told_the_pod(cluster: Cluster, host: Host) -> None:
    rows = {row["pod"]: row for row in json.loads(cluster.run("gpushim ps --format=json"))}
    assert (rows["one"]["engine"], rows["one"]["namespace"]) == ("cri-o", "default")
    assert rows["one"]["devices"] == [str(held(cluster, host, "one"))]
    assert "none" not in rows
    said = cluster.run("gpushim explain --pod default/one")
    assert re.search(rf"{GPU} +{host.gpus[held(cluster, host, 'one')].uuid} ", said), said


def test_an_upgrade_follows_crio_and_loses_nothing(cluster: Cluster, host: Host) -> None:
    """Whose runtimes shall have their monitors in the pod's cgroup from now on; it does so on cgroup v2 alone.

    The handler has another name from now on, and the old one stays for the pods that have it.
    """
    text = cluster.run(f"cat {PACKAGED}")
    cluster.write(PACKAGED, re.sub(r"(monitor_path = .*\n)", rf"\1{crio.MONITOR}", text))
    was = held(cluster, host, "one")
    cluster.helm("upgrade", CHART, "gpushim", NEXT)
    rolled_out(cluster)
    serves(cluster, {GPU: len(host.gpus)})
    assert crio.MONITOR in cluster.run(f"cat {OURS}")
    assert handlers(cluster) == ["gpu", "nvidia"]
    workload.create(cluster, "two", {GPU: 1}, runtime="gpu")
    workload.running(cluster, "two")
    for name in ("one", "two"):
        sees_its_own(cluster, host, name)
    assert held(cluster, host, "one") == was


def handlers(cluster: Cluster) -> list[str]:
    """List gpushim's handlers that CRI-O has."""
    found = tomllib.loads(cluster.run("crio status config 2>/dev/null"))["crio"]["runtime"]["runtimes"]
    return sorted(name for name, entry in found.items() if entry["runtime_path"].endswith("/gpushim-runtime"))


def test_the_old_handler_goes_with_the_last_pod_that_needs_it(cluster: Cluster) -> None:
    workload.remove(cluster, "one", "none")
    selector = "--selector=app.kubernetes.io/component=node"

    def gone() -> bool:  # CRI-O's containers go some time after their pod
        cluster.kubectl("delete", "pod", selector, f"--namespace={NAMESPACE}")
        rolled_out(cluster)
        return handlers(cluster) == ["gpu"]

    cluster.wait_for(gone, "it is gone")
    assert cluster.kubectl("exec", "two", "--", "echo", "here") == "here\n"


def test_removal_waits_for_a_pod_that_needs_the_handler(cluster: Cluster) -> None:
    """CRI-O could not remove the containers of one that has ended otherwise."""
    ends = workload.spec({GPU: 1}, "true", runtime="gpu")
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "done"}, "spec": ends})
    cluster.wait_for(lambda: cluster.pods()["done"]["status"]["phase"] == "Succeeded", "it has ended")
    workload.remove(cluster, "two")
    cluster.helm("upgrade", CHART, "gpushim", {**NEXT, "uninstall": True})
    logs = ("logs", "daemonset/gpushim-uninstall", f"--namespace={NAMESPACE}", "--container=uninstall")
    said = "CRI-O could neither end nor remove the containers of default/done"
    cluster.wait_for(lambda: said in cluster.kubectl(*logs, check=False), "it says so")
    assert "gpushim-runtime" in cluster.run(f"cat {OURS}")
    assert cluster.run(KEPT)
    workload.remove(cluster, "done")
    cluster.wait_for(lambda: not cluster.run(KEPT), "CRI-O has removed it")


def test_nothing_is_left(cluster: Cluster, before: dict[str, str]) -> None:
    selector = "--selector=app.kubernetes.io/component=uninstall"
    cluster.kubectl("delete", "pod", selector, f"--namespace={NAMESPACE}")  # kubelet tries again some seconds later
    rolled_out(cluster)
    assert not labelled(cluster)
    assert cluster.run(f"ls {OURS} 2>&1 || true").endswith("No such file or directory\n")
    cluster.helm("uninstall", "gpushim")
    cluster.wait_for(lambda: not cluster.pods(namespace=NAMESPACE), "all pods are gone")
    text = cluster.run(f"cat {PACKAGED}")
    cluster.write(PACKAGED, text.replace(crio.MONITOR, ""))
    nothing_is_left(cluster, before)
