"""Both fronts on one node, the drivers, kubelet and GPUs changed at random: no GPU is given twice.

After each step all containers are looked at from inside (reach.py). $GPUSHIM_DRA_WALK_STEPS says how many steps,
$GPUSHIM_DRA_WALK_SEED repeats a walk as far as a machine repeats itself.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from e2e import claims, workload
from e2e.allocated import built
from e2e.clusterwalk import ALL, RECORD, Walk
from e2e.controlplane import served
from e2e.deployed import GPU, IMAGE, serves
from e2e.dradeployed import becomes, install, log
from e2e.helm import Values
from e2e.plane import Cluster
from e2e.reach import Pods
from fakehost import Host
from gpuplugin.allocation.kubelet_view import QUIET

STEPS = int(os.environ.get("GPUSHIM_DRA_WALK_STEPS", "25"))
SEED = os.environ.get("GPUSHIM_DRA_WALK_SEED") or str(time.time_ns())
VALUES: Values = {"image": IMAGE, "settings": {"mig-strategy": "mixed"}, "dra": {"enabled": True}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    return built(tmp_path_factory.mktemp("drawalk"), 3, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the device plugin and the DRA driver."""
    install(cluster, VALUES)
    serves(cluster, ALL)
    return cluster


def test_what_an_init_container_has_is_no_claim_s(cluster: Cluster, host: Host) -> None:
    """Of the device plugin; kubelet (pod-resources) lists what the usual container is to have alone."""
    workload.create(cluster, "beside", {}, runtime="")
    workload.running(cluster, "beside")
    spec = workload.spec({GPU: 1}, runtime="")
    (box,) = spec["containers"]
    spec["initContainers"] = [{**box, "name": "init", "resources": {"limits": {GPU: "2"}}}]  # works for long
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "init"}, "spec": spec})
    becomes(cluster, lambda: len(claims.taints(cluster)) == 2, "two GPUs are given out")
    before = claims.taints(cluster)
    time.sleep(QUIET + 3)  # what nobody has who is listed would be free then
    assert len(cluster.node.held("init")[GPU]) == 1
    assert claims.taints(cluster) == before
    workload.remove(cluster, "init")
    becomes(cluster, lambda: not claims.taints(cluster), "they are free when the pod has ended", 60)
    workload.remove(cluster, "beside")


def test_no_gpu_is_given_twice(cluster: Cluster, host: Host, tmp_path: Path) -> None:
    print(f"GPUSHIM_DRA_WALK_SEED={SEED}")
    walk = Walk(cluster, Pods(cluster.node, host, tmp_path / "nodes"), random.Random(SEED))
    try:
        for number in range(STEPS):
            print(f"{time.strftime('%T')} {number}: {walk.step()}; {walk.made}", flush=True)
        began = time.monotonic()
        walk.finish()
        print(f"{time.strftime('%T')} all is offered after {time.monotonic() - began:.1f} s", flush=True)
        print(f"{len(walk.inside.parts)} containers were seen")
    except AssertionError:
        print(log(cluster)[-6000:], log(cluster, "cluster")[-3000:], sep="\n--\n")
        raise
    assert "Traceback" not in log(cluster) + log(cluster, "cluster")


def test_what_a_pod_has_stays_its_own_with_another_kubelet_and_no_api_server(cluster: Cluster) -> None:
    """kubelet lists static pods alone then, until the API server is back: the owner runs on all the while.

    The last here: the scheduler takes a while to hear of slices again.
    """
    serves(cluster, ALL)  # the device plugin, whose resource the pod would else have by a claim
    workload.create(cluster, "owner", {GPU: 1}, runtime="")
    workload.running(cluster, "owner")
    becomes(cluster, lambda: "pod default/owner" in cluster.run(f"cat {RECORD}"), "whose it is, is known")
    before = claims.taints(cluster)
    cluster.node.stop(signal.SIGKILL)
    cluster.server.stop(signal.SIGKILL)
    cluster.node.start()
    time.sleep(2 * QUIET + 3)  # it is young for so long; what nobody has who is listed would be free then
    assert "owner" not in cluster.node.everybody()
    assert "pod default/owner" in cluster.run(f"cat {RECORD}")
    cluster.server.start()
    served(cluster.place, cluster.work)
    becomes(cluster, lambda: claims.taints(cluster) == before, "slices are there again, and have it")
    workload.remove(cluster, "owner")
    becomes(cluster, lambda: not claims.taints(cluster), "it is free when the pod has ended", 60)
