"""Claims whose containers share a GPU by MPS, or in time slices of their own, in a real cluster with the chart.

The GPUs and MPS's daemon are simulated, and a shell starts what systemd would; all else is what a cluster has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e import claims, worker
from e2e.allocated import built
from e2e.dradeployed import ALONE, becomes, install, runs
from e2e.mpsclient import CLIENT, STARTS
from e2e.plane import Cluster
from fakehost import Host


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Two GPUs."""
    return built(tmp_path_factory.mktemp("drashared"), 2)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the chart's DRA driver alone."""
    cluster.write("/usr/bin/systemctl", worker.SYSTEMCTL.replace("#!/bin/sh\n", STARTS))
    install(cluster, ALONE)
    return cluster


def claim(name: str, **sharing: Any) -> dict[str, Any]:
    """Return a claim for a GPU that is shared in a way."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return claims.claim(name, config=[{"opaque": {"driver": claims.DRIVER, "parameters": parameters}}])


def kept(host: Host, what: str, uuid: str) -> str:
    """Return what the simulated driver keeps of a GPU."""
    path = Path(f"{host.root}/usr/lib/fakehost/{what}-{uuid}")
    return path.read_text().strip() if path.exists() else "0"


def left(cluster: Cluster) -> str:
    """List what claims have left on the node."""
    return cluster.run("ls -d /run/gpushim/mps/claim-* /var/run/cdi/gpushim-claim-* 2>/dev/null", check=False)


def test_pods_of_a_claim_are_clients_of_its_mps_daemon(cluster: Cluster, host: Host) -> None:
    limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    cluster.apply(claim("mps", strategy="MPS", mpsConfig=limits), claims.pod("mps", "mps"), claims.pod("two", "mps"))
    runs(cluster, "mps", "two")
    seen = [
        json.loads(cluster.kubectl("exec", name, "--container=box0", "--", "python3", "-c", CLIENT))
        for name in ("mps", "two")
    ]
    assert {(one["threads"], one["memory"]) for one in seen} == {("50.0", "10240M")}
    assert len({one["shm"] for one in seen}) == 1
    assert [one["variables"] for one in seen] == [["CUDA_MPS_PIPE_DIRECTORY"]] * 2
    assert [one["tries"] for one in seen] == [["EROFS"] * 4] * 2
    (uuid,) = claims.held(cluster, "mps")
    assert kept(host, "compute-mode", uuid) == "3"
    rows = {row["pod"]: row for row in json.loads(cluster.run("gpushim ps --format=json"))}
    (index,) = (str(gpu.index) for gpu in host.gpus if gpu.uuid == uuid)
    assert rows["two"]["devices"] == [index]
    cluster.kubectl("delete", "pod", "two", "--grace-period=0")
    assert kept(host, "compute-mode", uuid) == "3"
    claims.remove(cluster, "mps")
    becomes(cluster, lambda: kept(host, "compute-mode", uuid) == "0" and not left(cluster), "all is as it was")


def test_a_claim_has_time_slices_of_its_own(cluster: Cluster, host: Host) -> None:
    cluster.apply(claim("long", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}))
    cluster.apply(claims.pod("long", "long"))
    runs(cluster, "long")
    (uuid,) = claims.held(cluster, "long")
    assert kept(host, "time-slice", uuid) == "3"
    claims.remove(cluster, "long")
    becomes(cluster, lambda: kept(host, "time-slice", uuid) == "0" and not left(cluster), "all is as it was")


def test_a_spec_that_is_gone_is_there_again_for_a_container_that_restarts(cluster: Cluster) -> None:
    """As after a boot: kubelet names it, and asks nobody."""
    pod = claims.pod("mps", "mps", restartPolicy="Always")
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "until [ -e /ends ]; do sleep 0.2; done"]
    cluster.apply(claim("mps", strategy="MPS"), pod)
    runs(cluster, "mps")
    cluster.run("rm /var/run/cdi/gpushim-claim-*")
    cluster.kubectl("exec", "mps", "--container=box0", "--", "touch", "/ends")

    def again() -> bool:
        (box,) = cluster.pods()["mps"]["status"]["containerStatuses"]
        return bool(box["restartCount"] and box["ready"])

    becomes(cluster, again, "the container runs again")
    claims.remove(cluster, "mps")
