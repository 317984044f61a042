"""The chart's DRA driver in a real cluster: GPUs by claim beside the device plugin, from one record.

One story on one cluster, in the order of the tests. The host's GPUs are simulated; all else is what a cluster has.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from e2e import claims, workload
from e2e.deployed import CHART, GPU, rolled_out, serves
from e2e.dradeployed import FRONTS, becomes, driver, runs, versions
from e2e.draplane import ALL, VALUES
from e2e.draplane import cluster as cluster
from e2e.draplane import host as host
from e2e.expect import sees_by_cdi
from e2e.helm import NAMESPACE
from e2e.kube import CLAIMS, NAME
from e2e.plane import Cluster
from fakehost import Host


def test_the_nodes_devices_are_published(cluster: Cluster, host: Host) -> None:
    wanted = {gpu.uuid for gpu in host.gpus[1:]} | {mig.uuid for mig in host.gpus[0].mig}
    becomes(cluster, lambda: claims.devices(cluster).keys() == wanted, "all devices are in slices")


def test_a_pod_gets_the_gpu_of_its_claim(cluster: Cluster, host: Host) -> None:
    cluster.apply(claims.claim("one"), claims.pod("one", "one", containers=2), claims.pod("two", "one"))
    runs(cluster, "one", "two")
    (uuid,) = claims.held(cluster, "one")
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == uuid)
    for pod, container in (("one", 0), ("one", 1), ("two", 0)):
        sees_by_cdi(claims.look(cluster, pod, host, [index], container), host, [index])
    rows = {row["pod"]: row for row in json.loads(cluster.run("gpushim ps --format=json"))}
    assert (rows["two"]["devices"], rows["two"]["claims"][0]["name"]) == ([str(index)], "one")


def test_the_device_plugin_does_not_give_it_out(cluster: Cluster) -> None:
    """Nor anything else that a claim may have: kubelet counts each giver by itself."""
    serves(cluster, {**ALL, GPU: 2})
    claims.remove(cluster, "one", "two")
    serves(cluster, {**ALL, GPU: 3})


def test_what_the_device_plugin_gave_is_tainted(cluster: Cluster) -> None:
    workload.create(cluster, "plain", {GPU: 1})
    runs(cluster, "plain")
    (uuid,) = cluster.node.held("plain")[GPU]
    becomes(cluster, lambda: claims.taints(cluster) == {uuid: {"device-plugin": "allocated"}}, "it is tainted")
    workload.remove(cluster, "plain")
    becomes(cluster, lambda: not claims.taints(cluster), "the taint is gone")


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


def test_each_container_gets_the_request_that_it_names(cluster: Cluster, host: Host) -> None:
    """Two instances of one GPU, by matchAttribute; the first alternative that fits, with a config of its own."""
    small = {"cel": {"expression": f"device.attributes['{claims.DRIVER}'].profile == '1g.5gb'"}}
    none = {"cel": {"expression": f"device.attributes['{claims.DRIVER}'].profile == '7g.40gb'"}}
    ways = [
        {"name": "whole", "deviceClassName": "mig.nvidia.com", "selectors": [none]},
        {"name": "small", "deviceClassName": "mig.nvidia.com", "selectors": [small]},
    ]
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}
    config = {"requests": ["any/small"], "opaque": {"driver": claims.DRIVER, "parameters": parameters}}
    wanted = claims.claim(
        "both",
        {"name": "any", "firstAvailable": ways},
        claims.request("other", "mig.nvidia.com"),
        constraints=[{"matchAttribute": f"{claims.DRIVER}/parentUUID", "requests": ["any", "other"]}],
        config=[config],
    )
    pod = claims.pod("both", "both", containers=2)
    for box, name in zip(pod["spec"]["containers"], ("any", "other")):
        box["resources"] = {"claims": [{"name": "both", "request": name}]}
    cluster.apply(wanted, pod)
    runs(cluster, "both")
    uuids = {mig.profile: mig.uuid for mig in host.gpus[0].mig}
    for container, (mine, others) in enumerate((("1g.5gb", "3g.20gb"), ("3g.20gb", "1g.5gb"))):
        seen = json.loads(claims.look(cluster, "both", host, [0], container))["nvidia-smi"]
        assert (uuids[mine] in seen, uuids[others] in seen) == (True, False)
    claims.remove(cluster, "both")


def test_an_administrator_looks_at_a_gpu_beside_who_has_it(cluster: Cluster, host: Host) -> None:
    """And takes it from nobody: other claims get it, and so do the device plugin's pods."""
    cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    cluster.apply(claims.claim("owner"), claims.pod("owner", "owner"))
    runs(cluster, "owner")
    everything = claims.request(adminAccess=True, allocationMode="All")
    cluster.apply(claims.claim("admin", everything), claims.pod("admin", "admin"))
    runs(cluster, "admin")
    whole = [gpu.index for gpu in host.gpus[1:]]
    sees_by_cdi(claims.look(cluster, "admin", host, whole), host, whole)
    workload.create(cluster, "plain", {GPU: 1})
    runs(cluster, "plain")
    serves(cluster, {**ALL, GPU: 2})
    workload.remove(cluster, "plain")
    becomes(cluster, lambda: not claims.taints(cluster), "the taint is gone")
    cluster.apply(claims.claim("two", claims.request(count=2)), claims.pod("two", "two"))
    runs(cluster, "two")
    assert not {*claims.held(cluster, "two")} & {*claims.held(cluster, "owner")}
    claims.remove(cluster, "admin", "owner", "two")


CONFIGS = {
    "misspelled": ({"sharing": {"strategie": "MPS"}}, "strategie"),
    "of another kind": ({"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}, "mpsConfig"),
}


@pytest.mark.parametrize(("config", "sentence"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_read_strictly(cluster: Cluster, config: dict[str, Any], sentence: str) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **config}
    opaque = {"opaque": {"driver": claims.DRIVER, "parameters": parameters}}
    cluster.apply(claims.claim("odd", config=[opaque]), claims.pod("odd", "odd"))
    becomes(cluster, lambda: sentence in claims.why(cluster, "odd"), f"an event names {sentence}")
    claims.remove(cluster, "odd")


def test_a_lost_gpu_is_tainted_and_told_to_its_pod(cluster: Cluster, host: Host) -> None:
    cluster.apply(claims.claim("one"), claims.pod("one", "one"))
    runs(cluster, "one")
    (uuid,) = claims.held(cluster, "one")
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == uuid)

    def health() -> list[tuple[str, str]]:
        (box,) = cluster.pods()["one"]["status"]["containerStatuses"]
        rows = [row for one in box.get("allocatedResourcesStatus", ()) for row in one["resources"]]
        return [(row["resourceID"], row["health"]) for row in rows]

    host.lose(index)
    try:
        cluster.run("gpushim refresh --force", check=False)
        becomes(cluster, lambda: claims.taints(cluster).keys() == {uuid}, "it is tainted")
        becomes(cluster, lambda: health() == [(f"nvidia.com/gpu={uuid}", "Unhealthy")], "the pod's status says so")
    finally:
        host.find(index)
        cluster.run("gpushim refresh --force")
    becomes(cluster, lambda: not claims.taints(cluster), "the taint is gone")
    becomes(cluster, lambda: health() == [(f"nvidia.com/gpu={uuid}", "Healthy")], "and so says the pod's status")
    claims.remove(cluster, "one")


def test_both_fronts_come_back_beside_a_lost_gpu(cluster: Cluster, host: Host) -> None:
    """As after a reboot; claims begin and end, and the same containers see the GPU when it is well again."""
    cluster.apply(claims.claim("before"), claims.pod("before", "before"))
    runs(cluster, "before")
    lost = next(gpu for gpu in host.gpus[1:] if [gpu.uuid] != claims.held(cluster, "before"))
    host.lose(lost.index)
    try:
        cluster.run("gpushim refresh --force", check=False)
        becomes(cluster, lambda: claims.taints(cluster).keys() == {lost.uuid}, "it is tainted")
        old = fronts(cluster)
        cluster.kubectl("delete", "pod", FRONTS, f"--namespace={NAMESPACE}")
        becomes(
            cluster, lambda: len(fronts(cluster)) == 1 and not fronts(cluster).keys() & old.keys(), "both are back"
        )
        serves(cluster, {**ALL, GPU: 1})
        cluster.apply(claims.claim("beside"), claims.pod("beside", "beside"))
        runs(cluster, "beside")
        assert lost.uuid not in claims.held(cluster, "beside")
        claims.remove(cluster, "before", "beside")
        serves(cluster, {**ALL, GPU: 2})
        assert claims.taints(cluster).keys() == {lost.uuid}
        came = fronts(cluster)
    finally:
        host.find(lost.index)
    serves(cluster, {**ALL, GPU: 3})
    becomes(cluster, lambda: not claims.taints(cluster), "the taint is gone")
    assert fronts(cluster) == came


def fronts(cluster: Cluster) -> dict[str, list[str]]:
    """Return the containers of both fronts' pods, of those that are ready, by the pods' names."""
    found = {}
    for name, pod in cluster.pods(FRONTS, namespace=NAMESPACE).items():
        boxes = pod["status"].get("containerStatuses", ())
        if boxes and all(box["ready"] for box in boxes):
            found[name] = sorted(box["containerID"] for box in boxes)
    return found


def test_slices_are_put_right_within_seconds(cluster: Cluster, host: Host) -> None:
    """Whoever edits them, or deletes them."""
    (one,) = claims.slices(cluster)
    name, before = one["metadata"]["name"], claims.devices(cluster)
    cluster.kubectl("delete", "resourceslice", name)
    becomes(cluster, lambda: claims.devices(cluster) == before, "it is back")
    patch = '[{"op": "remove", "path": "/spec/devices/0"}]'
    cluster.kubectl("patch", "resourceslice", name, "--type=json", f"--patch={patch}")
    becomes(cluster, lambda: claims.devices(cluster) == before, "it is whole")


def test_a_driver_that_is_killed_loses_no_claim(cluster: Cluster, host: Host) -> None:
    """And what the API server has of it is not written again."""
    cluster.apply(claims.claim("one"), claims.pod("one", "one"))
    runs(cluster, "one")
    before = claims.slices(cluster)
    (pod,) = driver(cluster)
    cluster.kubectl("delete", "pod", pod, f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
    becomes(cluster, lambda: [*driver(cluster)] not in ([], [pod]), "another is there")
    rolled_out(cluster)
    cluster.apply(claims.claim("two"), claims.pod("two", "two"))
    runs(cluster, "two")
    assert versions(claims.slices(cluster)) == versions(before)
    assert claims.held(cluster, "one") != claims.held(cluster, "two")
    claims.remove(cluster, "one", "two")


def test_a_kubelet_that_starts_again(cluster: Cluster) -> None:
    """It takes the node's slices away, and the driver has them back once it is registered; claims keep their GPUs."""
    before = claims.devices(cluster)
    cluster.apply(claims.claim("one"), claims.pod("one", "one"))
    runs(cluster, "one")
    cluster.node.stop(signal.SIGKILL)
    cluster.node.start()
    becomes(cluster, lambda: claims.devices(cluster) == before, "the slices are back")
    cluster.apply(claims.claim("two"), claims.pod("two", "two"))
    runs(cluster, "one", "two")
    assert claims.held(cluster, "one") != claims.held(cluster, "two")
    claims.remove(cluster, "one", "two")


def test_another_nodes_slices_are_not_its_business(cluster: Cluster) -> None:
    """The driver's token may write slices of its node alone."""
    (one,) = claims.slices(cluster)
    (pod,) = driver(cluster)
    account = f"system:serviceaccount:{NAMESPACE}:gpushim-dra-driver"
    node = "--as-user-extra=authentication.kubernetes.io/node-name="
    words = ("delete", "resourceslice", one["metadata"]["name"], "--dry-run=server", f"--as={account}")
    assert "this driver may write slices of its own node only" in cluster.kubectl(*words, check=False)
    assert "of its own node only, other" in cluster.kubectl(*words, f"{node}other", check=False)
    assert "deleted (server dry run)" in cluster.kubectl(*words, f"{node}{NAME}")
    assert pod


def test_a_node_goes_over_by_a_label_and_back(cluster: Cluster, host: Host) -> None:
    """Pods that ask by the extended resource go on working, and those that run keep what they have."""
    cluster.kubectl("label", "node", NAME, "gpushim/by-claims=true")
    becomes(cluster, lambda: cluster.allocatable().get(GPU, "0") == "0", "the plugin has gone")
    spec = workload.spec({GPU: 1}, runtime="")
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-label"}, "spec": spec})
    runs(cluster, "by-label")
    assert len(cluster.node.held("by-label")[CLAIMS]) == 1
    cluster.kubectl("label", "node", NAME, "gpushim/by-claims-")
    serves(cluster, {**ALL, GPU: 2})
    workload.remove(cluster, "by-label")
    serves(cluster, {**ALL, GPU: 3})


def test_the_way_over_and_back(cluster: Cluster, host: Host) -> None:
    """Pods that ask by the extended resource go on working, and those that run keep what they have."""
    workload.create(cluster, "before", {GPU: 1})
    runs(cluster, "before")
    (old,) = cluster.node.held("before")[GPU]
    cluster.helm("upgrade", CHART, "gpushim", {**VALUES, "plugin": {"enabled": False}})
    becomes(cluster, lambda: cluster.allocatable().get(GPU, "0") == "0", "the plugin has gone")
    spec = workload.spec({GPU: 1}, runtime="")
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-claim"}, "spec": spec})
    runs(cluster, "by-claim")
    (new,) = cluster.node.held("by-claim")[CLAIMS]
    assert new not in (old, host.gpus[0].uuid)
    (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == new)
    sees_by_cdi(workload.look(cluster, "by-claim", host, [index]), host, [index])
    cluster.helm("upgrade", CHART, "gpushim", {**VALUES, "dra": {**VALUES["dra"], "extendedResource": False}})
    serves(cluster, {**ALL, GPU: 2})
    workload.remove(cluster, "by-claim")  # which the scheduler counts against the plugin's, too
    serves(cluster, {**ALL, GPU: 3})
    workload.create(cluster, "after", {GPU: 1})
    runs(cluster, "after")
    assert cluster.node.held("after")[GPU] != [old]
    workload.remove(cluster, "before", "after")
