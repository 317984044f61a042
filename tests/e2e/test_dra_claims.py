"""Claims of all kinds at once in a cluster without a device plugin, and what an XID does to who has a GPU.

One story on one cluster, in the order of the tests. Each container is looked into: it opens the nodes of what its pod
was given, and no others, also such as it makes by itself.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from e2e import claims, workload
from e2e.allocated import built
from e2e.deployed import GPU
from e2e.dradeployed import ALONE, becomes, driver, install, kernel, rootfs, runs
from e2e.kube import CLAIMS
from e2e.plane import Cluster
from e2e.reach import Pods
from fakehost import Host

XID = 79  # the GPU has fallen off the bus
ROOT = "resource.kubernetes.io/pcieRoot"
TEN_GIB = f"device.capacity['{claims.DRIVER}'].memory.compareTo(quantity('10Gi')) >= 0"
ODD = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategie": "MPS"}}
TOLERATES = {"key": f"{claims.DRIVER}/xid", "operator": "Exists", "effect": "NoExecute"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Eight GPUs, the first of which is divided; two or four of them share a PCIe root."""
    return built(tmp_path_factory.mktemp("claims"), 8, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster, host: Host) -> Cluster:
    """A cluster with the DRA driver, which evicts."""
    install(cluster, {**ALONE, "dra": {"enabled": True, "taintEffect": "NoExecute"}}, kernel(host))
    return cluster


@pytest.fixture(scope="module")
def inside(cluster: Cluster, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Pods:
    return Pods(cluster.node, host, tmp_path_factory.mktemp("reach") / "nodes")


def cel(expression: str) -> dict[str, Any]:
    """Return members of a request that selects devices."""
    return {"selectors": [{"cel": {"expression": expression}}]}


def deployment(name: str, replicas: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a template of claims for one GPU, and a Deployment each of whose pods has one."""
    template = {**claims.claim(name), "kind": "ResourceClaimTemplate"}
    template["spec"] = {"spec": template["spec"]}
    spec = claims.pod(name, name)["spec"]
    spec["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": name}]
    labels = {"app": name}
    made = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
    wanted = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": made}
    return template, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": wanted}


def replicas(cluster: Cluster) -> dict[str, str]:
    """Return the GPUs of the Deployment's pods that run, by pod."""
    there = cluster.pods("--selector=app=many", "--field-selector=status.phase=Running")
    found = {name: cluster.node.held(name).get(CLAIMS, [""]) for name in there}
    return {name: uuid for name, (uuid,) in found.items() if uuid}


def held(cluster: Cluster, pod: str) -> list[str]:
    return cluster.node.held(pod)[CLAIMS]


def index(host: Host, uuid: str) -> int:
    (found,) = (gpu.index for gpu in host.gpus if uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig)))
    return found


def test_claims_of_all_kinds(cluster: Cluster, host: Host, inside: Pods) -> None:
    """MIG by memory; two GPUs of one PCIe root, which the first two are not; a Deployment's by template."""
    cluster.apply(
        claims.claim("large", claims.request(device_class="mig.nvidia.com", **cel(TEN_GIB))),
        claims.pod("large", "large"),
        claims.claim("near", claims.request(count=2), constraints=[{"matchAttribute": ROOT}]),
        claims.pod("near", "near"),
        *deployment("many", 2),
    )
    runs(cluster, "large", "near")
    becomes(cluster, lambda: len(replicas(cluster)) == 2, "both replicas run")
    (large,) = (mig.uuid for mig in host.gpus[0].mig if mig.profile == "3g.20gb")
    assert held(cluster, "large") == [large]
    near = [host.gpus[index(host, uuid)] for uuid in held(cluster, "near")]
    assert len({gpu.uuid for gpu in near}) == 2
    assert len({gpu.pcie_root for gpu in near}) == 1
    published = claims.devices(cluster)
    assert {uuid: one["attributes"][ROOT]["string"] for uuid, one in published.items()} == {
        uuid: host.gpus[index(host, uuid)].pcie_root for uuid in published
    }
    assert len(inside.look()) == 4


def test_one_of_three_claims_fails(cluster: Cluster, inside: Pods) -> None:
    """Its pod waits and the event names that one; the pod's end gives all three back. Others are not held up."""
    odd = [{"opaque": {"driver": claims.DRIVER, "parameters": ODD}}]
    small = claims.request(device_class="mig.nvidia.com")
    cluster.apply(claims.claim("a"), claims.claim("b", small), claims.claim("c", config=odd))
    cluster.apply(claims.pod("three", "a", "b", "c"), claims.claim("other"), claims.pod("other", "other"))
    runs(cluster, "other")
    becomes(cluster, lambda: "strategie" in claims.why(cluster, "three"), "an event says why")
    failed = [line for line in claims.why(cluster, "three").splitlines() if "strategie" in line]
    assert all("ResourceClaim c:" in line for line in failed), failed
    assert len(inside.look()) == 5
    claims.remove(cluster, "three", "other", "a", "b", "c")


def test_pods_that_ask_by_the_extended_resource(cluster: Cluster, inside: Pods) -> None:
    """For one GPU, and for two; then there is none left, and who wants one more waits for the others' end."""
    workload.create(cluster, "single", {GPU: 1}, runtime="")
    workload.create(cluster, "double", {GPU: 2}, runtime="")
    runs(cluster, "single", "double")
    assert (len(held(cluster, "single")), len(held(cluster, "double"))) == (1, 2)
    workload.create(cluster, "late", {GPU: 1}, runtime="")
    becomes(cluster, lambda: unschedulable(cluster, "late"), "one waits")
    assert len(inside.look()) == 6
    workload.remove(cluster, "single")
    runs(cluster, "late")
    assert len(inside.look()) == 6
    workload.remove(cluster, "double", "late")


def unschedulable(cluster: Cluster, name: str) -> bool:
    """Return whether the scheduler has no place for a pod."""
    rows = cluster.pods()[name]["status"].get("conditions", ())
    return any((row["type"], row.get("reason")) == ("PodScheduled", "Unschedulable") for row in rows)


def health(cluster: Cluster, pod: str) -> tuple[str, str]:
    """Return what a pod's status says of its only device."""
    (box,) = cluster.pods()[pod]["status"]["containerStatuses"]
    rows = [row for one in box.get("allocatedResourcesStatus", ()) for row in one["resources"]]
    return next(((row["health"], row.get("message", "")) for row in rows), ("", ""))


def strike(cluster: Cluster, *uuids: str) -> None:
    """Let the driver report an XID; to an NVML in a container, of which /etc is that of its own files."""
    (pod,) = driver(cluster).values()
    file = shlex.quote(f"{rootfs(cluster, pod, 'node')}/etc/fakehost.events")
    lines = "".join(f"gpu={uuid} type=8 data={XID} gi=-1 ci=-1\\n" for uuid in uuids)
    cluster.run(f"printf '{lines}' >>{file}")


def test_an_xid_evicts_who_has_the_gpu(cluster: Cluster, host: Host, inside: Pods) -> None:
    """But not who tolerates it, whose status says what is wrong; all is as before when the driver is another."""
    cluster.apply(claims.claim("brave", claims.request(tolerations=[TOLERATES])), claims.pod("brave", "brave"))
    runs(cluster, "brave")
    before = replicas(cluster)
    (pod, sick), (brave,) = sorted(before.items())[0], held(cluster, "brave")
    xids = {uuid: {"xid": str(XID)} for uuid in (sick, brave)}

    def tainted() -> bool:
        strike(cluster, *xids)  # again: an NVML that has just begun hears none of before
        return claims.taints(cluster) == xids

    becomes(cluster, tainted, "both are tainted")
    becomes(cluster, lambda: pod not in cluster.pods(), "the replica is evicted")
    assert "Marking for deletion" in claims.why(cluster, pod)  # by the controller of taints
    becomes(cluster, lambda: len({*replicas(cluster).values()} - {sick}) == 2, "another is there")
    becomes(cluster, lambda: health(cluster, "brave")[0] == "Unhealthy", "the pod's status says so")
    assert f"XID {XID}" in health(cluster, "brave")[1]
    inside.look()
    host.modify = not host.modify  # a module with other parameters is another one
    host.update()
    cluster.run("gpushim refresh")
    becomes(cluster, lambda: claims.devices(cluster) and not claims.taints(cluster), "the taints are gone")
    becomes(cluster, lambda: health(cluster, "brave") == ("Healthy", ""), "and so says the pod's status")
    selected = cel(f"device.attributes['{claims.DRIVER}'].uuid == '{sick}'")
    cluster.apply(claims.claim("again", claims.request(**selected)), claims.pod("again", "again"))
    runs(cluster, "again", "brave")
    assert held(cluster, "again") == [sick]
    inside.look()
