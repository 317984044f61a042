"""The chart's DRA driver in a real cluster: GPUs by claim beside the device plugin, from one book.

One story on one cluster, in the order of the tests. The host's GPUs are simulated; all else is what a cluster has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import fakehost
from e2e import claims, helm, image, plane, trees, workload
from e2e.expect import sees_by_cdi
from e2e.plane import Cluster
from e2e.test_cluster import GPU, NAMESPACE, REPOSITORY, rolled_out, serves
from fakehost import Host

CHART = trees.TOP / "packaging" / "kubernetes" / "chart"
VALUES: helm.Values = {
    "image": {"repository": REPOSITORY, "pullPolicy": "Never"},
    "dra": {"enabled": True},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    root = tmp_path_factory.mktemp("dra") / "root"
    cache = str(trees.TOP / ".cache" / "fakehost")
    return fakehost.build(str(root), 4, mig={0: ["3g.20gb", "1g.5gb"]}, compile_cache=cache)


@pytest.fixture(scope="module")
def cluster(host: Host, debian_image: Any, busybox_tree: Any) -> Iterator[Cluster]:
    """A cluster whose node has that host's driver, and the chart with the DRA driver."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    with plane.cluster(debian_image, pause, image.archive()) as found:
        found.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{host.root}"\n')
        found.kubectl("create", "namespace", NAMESPACE)
        found.helm("install", CHART, "gpushim", VALUES)
        rolled_out(found)
        yield found


def log(cluster: Cluster, container: str = "node") -> str:
    """Return what the driver's containers have said."""
    words = ("logs", "daemonset/gpushim-dra-driver", f"--namespace={NAMESPACE}", f"--container={container}")
    return cluster.kubectl(*words, check=False)


def runs(cluster: Cluster, *names: str) -> None:
    """Wait until pods run, and say what the driver said if they do not."""
    try:
        workload.running(cluster, *names)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log(cluster)}\n{log(cluster, 'cluster')}") from None


def test_the_nodes_devices_are_published(cluster: Cluster, host: Host) -> None:
    wanted = {gpu.uuid for gpu in host.gpus[1:]} | {mig.uuid for mig in host.gpus[0].mig}
    try:
        cluster.wait_for(lambda: claims.devices(cluster).keys() == wanted, "all devices are in slices")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log(cluster)}\n{log(cluster, 'cluster')}") from None


def test_a_pod_gets_the_gpu_of_its_claim(cluster: Cluster, host: Host) -> None:
    cluster.apply(claims.claim("one"), claims.pod("one", "one", containers=2), claims.pod("two", "one"))
    runs(cluster, "one", "two")
    (uuid,) = claims.held(cluster, "one")
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == uuid)
    for pod, container in (("one", 0), ("one", 1), ("two", 0)):
        sees_by_cdi(claims.look(cluster, pod, host, [index], container), host, [index])


def test_the_device_plugin_does_not_give_it_out(cluster: Cluster) -> None:
    """Nor anything else that a claim may have: kubelet counts each giver by itself."""
    serves(cluster, {GPU: 2})
    claims.remove(cluster, "one", "two")
    serves(cluster, {GPU: 3})


def test_what_the_device_plugin_gave_is_tainted(cluster: Cluster) -> None:
    workload.create(cluster, "plain", {GPU: 1})
    runs(cluster, "plain")
    (uuid,) = cluster.node.held("plain")[GPU]
    cluster.wait_for(lambda: claims.taints(cluster) == {uuid: {"device-plugin": "allocated"}}, "it is tainted")
    workload.remove(cluster, "plain")
    cluster.wait_for(lambda: not claims.taints(cluster), "the taint is gone")


def test_a_mig_instance_by_its_profile(cluster: Cluster, host: Host) -> None:
    selector = {"cel": {"expression": f"device.attributes['{claims.DRIVER}'].profile == '1g.5gb'"}}
    cluster.apply(claims.claim("mig", claims.request(device_class="mig.nvidia.com", selectors=[selector])))
    cluster.apply(claims.pod("mig", "mig"))
    runs(cluster, "mig")
    (small,) = (one.uuid for one in host.gpus[0].mig if one.profile == "1g.5gb")
    assert claims.held(cluster, "mig") == [small]
    report = json.loads(claims.look(cluster, "mig", host, [0]))
    assert small in report["nvidia-smi"]
    claims.remove(cluster, "mig")
