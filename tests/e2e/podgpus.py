"""Which GPUs a running pod has, told by three witnesses: pod-resources, kubelet's checkpoint, its own container."""

from __future__ import annotations

from e2e.expect import sees_exactly
from e2e.kube import Node
from e2e.leftovers import until
from fakehost import Host

GPU = "nvidia.com/gpu"
SECONDS = 30.0


def gpus(node: Node, host: Host, name: str) -> tuple[str, list[str]]:
    """Return a running pod's container and GPUs, once kubelet knows of both; all three witnesses must agree.

    Args:
        node: whose kubelet runs.
        host: whose GPUs they are.
        name: of the pod.
    """

    def container() -> str:
        pod = node.status(name)
        return pod.container if pod and pod.phase == "Running" else ""

    assert until(lambda: bool(container() and node.held(name)), SECONDS), f"{name}: {node.status(name)} {node.said()}"
    ids = sorted(node.held(name)[GPU])
    given = [sorted(one for row in entry["DeviceIDs"].values() for one in row) for entry in node.checkpoint()[1]]
    assert given.count(ids) == 1, given
    indices = [gpu.index for gpu in host.gpus if gpu.uuid in ids]
    sees_exactly(node.look(container(), host, indices), host, indices)
    return container(), ids
