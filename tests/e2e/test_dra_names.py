"""Who has what, where kubelet knows it late, or by a name that comes again: nothing goes to two, nothing is lost.

One story on one cluster, in the order of the tests. The host's GPUs are simulated; all else is what a cluster has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from e2e import claims, otherplugin, workload
from e2e.allocated import built
from e2e.deployed import GPU, IMAGE, serves
from e2e.dradeployed import becomes, install
from e2e.helm import Values
from e2e.leftovers import until
from e2e.plane import Cluster
from fakehost import Host
from gpuplugin.allocation.kubelet_view import QUIET

pytestmark = pytest.mark.skipif("GPUSHIM_LONG" not in os.environ, reason="a minute: tests/long/run dra")
VALUES: Values = {"image": IMAGE, "dra": {"enabled": True}}
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
RECORD = "/var/lib/gpushim/device-plugin/allocations.json"
SLOW, TAKES = "vendor.com/slow", 4 * QUIET


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return built(tmp_path_factory.mktemp("dra"), 3)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    install(cluster, VALUES)
    serves(cluster, {GPU: 3})
    return cluster


def test_an_init_container_that_waits_for_another_plugin_has_its_gpu(cluster: Cluster) -> None:
    """kubelet lists no init container, and writes its checkpoint when that has all, unless it gets a list."""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, otherplugin.__file__, str(cluster.node.usual / "device-plugins"), SLOW, str(TAKES)]
    with subprocess.Popen(command, env=here, stdout=subprocess.DEVNULL) as slow:
        try:
            cluster.wait_for(lambda: SLOW in cluster.allocatable(), "the other plugin is there")
            name = waiting(cluster)
            always = until(lambda: not claims.taints(cluster), TAKES, 1.0)
            assert not always, "its GPU is free"
            becomes(cluster, lambda: "running" in init(cluster, name), "it has all")
            assert claims.taints(cluster)
        finally:
            slow.kill()
    workload.remove(cluster, name)
    becomes(cluster, lambda: not claims.taints(cluster), "its GPU is free")


def waiting(cluster: Cluster) -> str:
    """Return a pod that has a GPU and waits for the other plugin; kubelet asks them in no order of its own."""
    for name in map("slow{}".format, range(20)):
        spec = workload.spec({}, runtime="")
        limits = {GPU: "1", SLOW: "1"}
        spec["initContainers"] = [{**spec["containers"][0], "name": "init", "resources": {"limits": limits}}]
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        if until(lambda: bool(claims.taints(cluster)), QUIET, 0.5):
            return name
        workload.remove(cluster, name)
        becomes(cluster, lambda: not claims.taints(cluster), "all is free", TAKES + 60)
    raise AssertionError("the other plugin was always asked first")


def init(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the state of a pod's init container."""
    (box,) = cluster.pods()[name]["status"].get("initContainerStatuses") or [{"state": {}}]
    return dict(box["state"])


def test_what_kubelet_forgot_ends_with_its_pod_though_another_has_the_name(cluster: Cluster) -> None:
    cluster.apply(stateful("web"))
    workload.running(cluster, "web-0")
    becomes(cluster, lambda: claims.taints(cluster), "a GPU is given out")
    before = uid(cluster)
    becomes(
        cluster,
        lambda: before in cluster.run("cat /var/lib/gpushim/device-plugin/allocations.json"),
        "its uid is noted",
    )
    cluster.node.stop(signal.SIGKILL)
    cluster.run(f"rm {CHECKPOINT}")
    cluster.node.start()
    serves(cluster, {GPU: 2})
    assert "which kubelet no longer knows" in cluster.run("gpushim device-plugin status")
    cluster.kubectl("delete", "pod", "web-0", "--wait=false")
    becomes(cluster, lambda: uid(cluster) not in ("", before), "another is there")
    workload.running(cluster, "web-0")
    serves(cluster, {GPU: 3})
    cluster.kubectl("delete", "statefulset", "web")


def uid(cluster: Cluster) -> str:
    """Return that of web-0, or ""."""
    return str(cluster.pods().get("web-0", {}).get("metadata", {}).get("uid", ""))


def stateful(name: str) -> dict[str, Any]:
    """Return a set of one pod, which has a GPU and comes back under its name."""
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {**workload.spec({GPU: 1}, runtime=""), "restartPolicy": "Always"},
    }
    labels = {"matchLabels": {"app": name}}
    spec = {"serviceName": name, "replicas": 1, "selector": labels, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
