"""A pod whose process hangs in the kernel, as one does whose GPU hangs, is deleted by force, and so is its claim.

kubelet and the API server know nothing of it any more; its GPU is nobody else's, by either front, until the process
has ended. A cgroup that is frozen stands for the kernel: a SIGKILL waits there. With cgroup v2 it would not.
One story on one cluster, in the order of the tests.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import claims, workload
from e2e.allocated import built
from e2e.claims import force, only
from e2e.deployed import GPU, IMAGE, serves
from e2e.dradeployed import becomes, install, log, runs
from e2e.plane import Cluster
from fakehost import Host

FREEZER = Path("/sys/fs/cgroup/freezer")
LONG = 80.0  # seconds: kubelet has what it has lost unprepared once a minute
SOON = 40.0  # a claim that is gone was taken back in these, and a pod that is gone in half of them
pytestmark = pytest.mark.skipif(not FREEZER.is_dir(), reason="with cgroup v2 a frozen process can be killed")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs."""
    return built(tmp_path_factory.mktemp("hung"), 3)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with both fronts."""
    install(cluster, {"image": IMAGE, "dra": {"enabled": True}})
    serves(cluster, {GPU: 3})
    becomes(cluster, lambda: len(claims.devices(cluster)) == 3, "the slices have all GPUs")
    return cluster


@contextlib.contextmanager
def hanging(cluster: Cluster, name: str) -> Iterator[None]:
    """Have a pod's processes hang during the block."""
    uid = cluster.pods()[name]["metadata"]["uid"]
    (group,) = (FREEZER / cluster.node.engine.state.name).glob(f"**/pod{uid}")
    (group / "freezer.state").write_text("FROZEN")
    try:
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")


def stays(cluster: Cluster, look: Callable[[], object], wanted: object, seconds: float) -> None:
    """Look at each moment whether something is so."""
    began = time.monotonic()
    while (after := time.monotonic() - began) < seconds:
        assert look() == wanted, f"after {after:.1f} s\n{told(cluster)}"
        time.sleep(0.5)


def told(cluster: Cluster) -> str:
    """Return what the cluster and both fronts have said."""
    return f"{cluster.events()}\n{log(cluster)}"


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.pods().get(name, {"status": {"phase": ""}})["status"]["phase"])


def test_what_a_claim_had_is_no_other_claims_and_not_the_device_plugins(cluster: Cluster) -> None:
    cluster.apply(claims.claim("hangs"), claims.pod("hangs", "hangs"))
    runs(cluster, "hangs")
    (uuid,) = claims.held(cluster, "hangs")
    serves(cluster, {GPU: 2})
    with hanging(cluster, "hangs"):
        force(cluster, "hangs")
        cluster.wait_for(lambda: not claims.left(cluster, "hangs"), "the claim is gone")
        cluster.apply(claims.claim("heir", only(uuid)), claims.pod("heir", "heir"))
        stays(cluster, lambda: (phase(cluster, "heir"), cluster.allocatable()[GPU]), ("Pending", "2"), LONG)
        assert claims.taints(cluster)[uuid] == {"problem": ""}
    becomes(cluster, lambda: phase(cluster, "heir") == "Running", "the heir runs")
    claims.remove(cluster, "heir")
    serves(cluster, {GPU: 3})


def test_what_a_pod_had_by_the_device_plugin_is_no_other_pods_and_no_claims(cluster: Cluster) -> None:
    workload.create(cluster, "hung", {GPU: 1})
    runs(cluster, "hung")
    (uuid,) = cluster.node.held("hung")[GPU]
    record = "cat /var/lib/gpushim/device-plugin/allocations.json"
    becomes(cluster, lambda: "pod default/hung" in cluster.run(record), "its pod is noted, which kubelet says later")
    with hanging(cluster, "hung"):
        cluster.kubectl("delete", "pod", "hung", "--force", "--grace-period=0")
        cluster.wait_for(lambda: "hung" not in cluster.pods(), "the pod is gone")
        workload.create(cluster, "next", {GPU: 3})
        cluster.apply(claims.claim("heir", only(uuid)), claims.pod("heir", "heir"))
        stays(cluster, lambda: "Running" in (phase(cluster, "next"), phase(cluster, "heir")), False, SOON)
        serves(cluster, {GPU: 2})
        cluster.kubectl("delete", "pod", "next", "--grace-period=0")
    becomes(cluster, lambda: phase(cluster, "heir") == "Running", "the heir runs")
    assert claims.held(cluster, "heir") == [uuid]
