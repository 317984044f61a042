"""Claims of Kubernetes' dynamic resource allocation, and pods that have them.

Out of scope: pods that ask by an extended resource (workload.py), the cluster (plane.py).
"""

from __future__ import annotations

import json
from typing import Any

from e2e import workload
from e2e.expect import probe
from e2e.kube import NAME
from e2e.plane import Cluster
from fakehost import Host

DRIVER, VERSION = "gpu.nvidia.com", "resource.k8s.io/v1"


def request(name: str = "gpu", device_class: str = DRIVER, **more: Any) -> dict[str, Any]:
    """Return a request of a claim for devices of a class."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def claim(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a claim of these requests; for one GPU without them."""
    spec = {"devices": {"requests": [*requests] or [request()], **more}}
    return {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str, *claims: str, containers: int = 1, **more: Any) -> dict[str, Any]:
    """Return a pod, each of whose containers has all of these claims.

    Args:
        name: of the pod.
        claims: their names.
        containers: how many.
        more: members of the pod's specification.
    """
    spec = workload.spec({}, runtime="")
    spec["resourceClaims"] = [{"name": each, "resourceClaimName": each} for each in claims]
    (box,) = spec["containers"]
    box["resources"] = {"claims": [{"name": each} for each in claims]}
    spec["containers"] = [{**box, "name": f"box{number}"} for number in range(containers)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, **more}}


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    """Return this node's slices, in the allocator's order."""
    words = ("resourceslices", f"--field-selector=spec.nodeName={NAME},spec.driver={DRIVER}")
    found: list[dict[str, Any]] = cluster.get(*words).get("items", [])
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


def devices(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the devices of a complete pool by UUID; nothing if it is not complete."""
    found = [one["spec"] for one in slices(cluster)]
    if {one["pool"]["resourceSliceCount"] for one in found} != {len(found)}:
        return {}
    if len({one["pool"]["generation"] for one in found}) != 1:
        return {}
    return {one["attributes"]["uuid"]["string"]: one for each in found for one in each.get("devices", ())}


def taints(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return values of taints by UUID and the key's end."""
    found: dict[str, dict[str, str]] = {}
    for uuid, one in devices(cluster).items():
        for row in one.get("taints", ()):
            found.setdefault(uuid, {})[row["key"].rpartition("/")[2]] = row.get("value", "")
    return found


def held(cluster: Cluster, *names: str) -> list[str]:
    """Return the UUIDs that claims are allocated, in the order of their names and results."""
    names_of = {one["name"]: uuid for uuid, one in devices(cluster).items()}
    found = []
    for name in names:
        allocation = cluster.get("resourceclaim", name).get("status", {}).get("allocation") or {}
        found += [names_of[row["device"]] for row in allocation.get("devices", {}).get("results", ())]
    return found


def look(cluster: Cluster, name: str, host: Host, indices: list[int], container: int = 0) -> str:
    """Run the probe in a container of a pod, which tries every GPU that is not among the indices."""
    return cluster.kubectl("exec", name, f"--container=box{container}", "--", *probe(host, indices))


def why(cluster: Cluster, name: str) -> str:
    """Return what events say of a pod, the last first."""
    words = ("events", f"--field-selector=involvedObject.name={name}", "--sort-by=.lastTimestamp")
    rows = cluster.get(*words).get("items", [])
    return "\n".join(str(row.get("message")) for row in reversed(rows))


def remove(cluster: Cluster, *names: str) -> None:
    """Remove pods and the claims of these names, and wait until both are gone."""
    cluster.kubectl("delete", "pod,resourceclaim", *names, "--ignore-not-found", "--wait=false", "--grace-period=0")
    cluster.wait_for(lambda: not left(cluster, *names), f"{names} are gone")


def left(cluster: Cluster, *names: str) -> list[str]:
    """List those of these pods and claims that are still there."""
    rows = [row for kind in ("pods", "resourceclaims") for row in cluster.get(kind)["items"]]
    return [json.dumps(row["metadata"]["name"]) for row in rows if row["metadata"]["name"] in names]


def only(uuid: str) -> dict[str, Any]:
    """Return a request for a certain GPU."""
    return request(selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].uuid == '{uuid}'"}}])


def force(cluster: Cluster, *names: str) -> None:
    """Delete pods by force, and their claims."""
    cluster.kubectl("delete", "pod", *names, "--force", "--grace-period=0")
    cluster.kubectl("delete", "resourceclaim", *names, "--wait=false")
