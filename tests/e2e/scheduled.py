"""A real API server and scheduler with a node that runs nothing: what becomes of claims.

Out of scope: a node that prepares them (plane.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from e2e import claims
from e2e.apiserver import Api, api
from e2e.controlplane import daemon
from e2e.leftovers import until
from e2e.plane import SCHEDULER

NODE, POOL, SECONDS = "node", "node", 90.0
SPACE = "looking"  # a namespace that may have admin access


@contextlib.contextmanager
def scheduler(devices: Sequence[dict[str, Any]], *more: dict[str, Any]) -> Iterator[Api]:
    """Run both, with a node that has these devices, and more objects."""
    with api() as found, daemon(found.place, found.work, SCHEDULER):
        capacity = {"cpu": "1000", "memory": "1000Gi", "pods": "10000"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"capacity": capacity, "allocatable": capacity, "conditions": ready}
        pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
        labels = {"resource.kubernetes.io/admin-access": "true"}
        create(
            found,
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status},
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": SPACE}},
            {
                "apiVersion": claims.VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": "one"},
                "spec": {"driver": claims.DRIVER, "nodeName": NODE, "pool": pool, "devices": [*devices]},
            },
            *more,
        )
        yield found


def create(server: Api, *objects: dict[str, Any]) -> None:
    """Create objects, all of them."""
    done = server.kubectl("create", "--filename=-", objects=[*objects])
    assert not done.returncode, done.stderr


def outcomes(server: Api, wanted: Sequence[dict[str, Any]]) -> dict[str, list[str] | str]:
    """Have claims scheduled, each for a pod.

    Returns:
        by the claim's name: REQUEST=DEVICE of each that it got, or why it got none: what the API server or the
        scheduler says.
    """
    names = {one["metadata"]["name"] for one in wanted}
    for one in wanted:
        one["metadata"]["namespace"] = SPACE
    done = server.kubectl("create", "--filename=-", objects=[*wanted])
    found: dict[str, list[str] | str] = {}
    for line in done.stderr.splitlines():
        found.update((name, line) for name in names if f'"{name}"' in line and "invalid" in line)
    assert len(found) == done.stderr.count(" is invalid"), done.stderr
    server.kubectl("create", "--filename=-", objects=[_pod(name) for name in sorted(names - found.keys())])

    def settled() -> bool:
        text = server.kubectl("get", "pods,resourceclaims", f"--namespace={SPACE}", "--output=json").stdout
        rows = json.loads(text)["items"] if text else []
        for one in rows:
            name = one["metadata"]["name"]
            if one["kind"] == "ResourceClaim" and "allocation" in one.get("status", {}):
                results = one["status"]["allocation"]["devices"]["results"]
                found[name] = [f"{row['request']}={row['device']}" for row in results]
            for row in one.get("status", {}).get("conditions", ()) if one["kind"] == "Pod" else ():
                if row["type"] == "PodScheduled" and row["status"] == "False":
                    found.setdefault(name, row.get("message", ""))
        return names <= found.keys()

    assert until(settled, SECONDS), names - found.keys()
    return found


def _pod(name: str) -> dict[str, Any]:
    spec = {
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
        "containers": [{"name": "a", "image": "x", "resources": {"claims": [{"name": "c"}]}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}
