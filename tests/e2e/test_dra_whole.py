"""Claims beside a device plugin that gives out GPUs in MIG mode as a whole: what it would refuse, it does not offer.

One story on one cluster, in the order of the tests. The host's GPUs are simulated; all else is what a cluster has.
"""

from __future__ import annotations

from typing import Any

import pytest

from e2e import claims, helm, workload
from e2e.allocated import built
from e2e.deployed import GPU, IMAGE, serves
from e2e.dradeployed import becomes, install, runs
from e2e.plane import Cluster
from fakehost import Host

VALUES: helm.Values = {"image": IMAGE, "dra": {"enabled": True}}  # mig-strategy is none
PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
MPS = {"opaque": {"driver": claims.DRIVER, "parameters": PARAMETERS}}  # waits, for the node has no systemd
ASKED: dict[str, dict[str, Any]] = {
    "an instance of a GPU": claims.claim("part", claims.request(device_class="mig.nvidia.com")),
    "what kubelet does not list yet": claims.claim("part", config=[MPS]),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    return built(tmp_path_factory.mktemp("dra"), 3, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    install(cluster, VALUES)
    return cluster


@pytest.mark.parametrize("claim", ASKED.values(), ids=ASKED)
def test_pods_get_what_a_claim_leaves(cluster: Cluster, claim: dict[str, Any]) -> None:
    serves(cluster, {GPU: 3})
    cluster.apply(claim, claims.pod("part", "part"))
    becomes(cluster, lambda: "claim default/part of gpu.nvidia.com has" in status(cluster), "the plugin says so", 20)
    serves(cluster, {GPU: 2})
    for name in ("a", "b"):
        workload.create(cluster, name, {GPU: 1})
    runs(cluster, "a", "b")
    assert "in another way" not in status(cluster)
    claims.remove(cluster, "a", "b", "part")


def status(cluster: Cluster) -> str:
    return cluster.run("gpushim device-plugin status")


def test_all_is_offered_when_claims_have_ended(cluster: Cluster) -> None:
    serves(cluster, {GPU: 3})
