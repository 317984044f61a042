"""Claims of files, and a node that is asked about them."""

from __future__ import annotations

from typing import Any

from gpuplugin.dra.explain_file import report
from gpuplugin.dra.node_state import NodeState
from gpuplugin.dra.offered import devices
from gpuplugin.matching import manifests
from unit.gpuplugin.snapshots import gpu, mig, snapshot

HOST = snapshot([gpu(0), gpu(1), gpu(2, mig=True)], [mig(2, 0)])
GPU = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
API = "resource.nvidia.com/v1beta1"
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def claim(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"devices": {"requests": [*requests] or [GPU], **more}}
    metadata = {"name": "c", "namespace": "d"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def exactly(**more: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **more}}


def held(name: str, *uuids: str, admin: bool = False) -> dict[str, Any]:
    return {"namespace": "d", "name": name, "devices": [{"uuid": one, "admin": admin} for one in uuids]}


def node(**more: Any) -> NodeState:
    offered = devices(HOST)
    indices = {one.uuid: str(number) for number, one in enumerate(offered)}
    return NodeState(HOST, offered, indices, {}, {}, {}, None, [])._replace(**more)


def found(*documents: dict[str, Any], **more: Any) -> dict[str, Any]:
    (one,) = report(manifests.read(documents), node(**more))["claims"]
    return dict(one)


def answers(one: dict[str, Any]) -> list[str]:
    return [row["answer"] for request in one["requests"] for row in request["devices"]]


def opaque(kind: str, *requests: str, **sharing: Any) -> dict[str, Any]:
    parameters = {"apiVersion": API, "kind": kind, **({"sharing": sharing} if sharing else {})}
    return {"requests": [*requests], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}


def notes(*documents: dict[str, Any], **more: Any) -> str:
    return "\n".join(report(manifests.read(documents), node(**more))["notes"])
