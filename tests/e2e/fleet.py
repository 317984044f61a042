"""A cluster of nodes whose GPUs differ, with the chart on all: what each has, and which were without a part of it.

Node-feature-discovery, which Debian has not, is played here: labels of NodeFeature objects become those of nodes.
Out of scope: the cluster (plane.py), and what one node alone does (test_cluster.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import image, plane, workload
from e2e.deployed import GPU, REPOSITORY, features
from e2e.expect import sees_exactly
from e2e.helm import NAMESPACE
from e2e.kube import NAME
from e2e.plane import Cluster
from e2e.worker import Worker
from fakehost import Host

COMPONENTS = ("device-plugin", "node")  # of the chart: each has a pod on each node
AWAY = ("not-ready", "unreachable")
# So that the controller-manager sees within seconds, not within a minute, that a node is silent.
SOON = "--node-monitor-period=1s --node-monitor-grace-period=15s"


@dataclass
class Fleet:
    """The cluster with its nodes.

    Attributes:
        cluster: the cluster.
        nodes: by name.
        hosts: their machines with GPUs, by the node's name.
    """

    cluster: Cluster
    nodes: dict[str, Worker]
    hosts: dict[str, Host]

    def labels(self, node: str) -> dict[str, str]:
        """Return the labels that the plugin posted of a node; none if there is no such object."""
        rows = (row for row in features(self.cluster) if row["metadata"]["name"] == f"gpushim-{node}")
        return next((row["spec"]["labels"] for row in rows), {})

    def discover(self) -> None:
        """Label the nodes, as node-feature-discovery does."""
        for node in self.nodes:
            words = (f"{name}={value}" for name, value in self.labels(node).items())
            self.cluster.kubectl("label", "node", node, "--overwrite", *words)

    def pod(self, name: str, node: str) -> None:
        """Ask for a pod with a GPU such as a node has, by the label of its product."""
        selector = {"nvidia.com/gpu.product": self.labels(node)["nvidia.com/gpu.product"]}
        spec = {**workload.spec({GPU: 1}), "nodeSelector": selector}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def holds(self, name: str) -> tuple[str, str]:
        """Return the node and the GPU of a pod, which runs, and sees that GPU alone."""
        workload.running(self.cluster, name)
        node = str(self.cluster.pods()[name]["spec"]["nodeName"])
        ((uuid,),) = self.nodes[node].node.held(name).values()
        host = self.hosts[node]
        (index,) = (gpu.index for gpu in host.gpus if gpu.uuid == uuid)
        sees_exactly(workload.look(self.cluster, name, host, [index]), host, [index])
        return node, uuid

    def containers(self, *names: str) -> list[tuple[str, int]]:
        """Return the container of each pod, and how often it has been started again."""
        boxes = [self.cluster.pods()[name]["status"]["containerStatuses"][0] for name in names]
        return [(box["containerID"], box["restartCount"]) for box in boxes]

    @contextlib.contextmanager
    def watching(self) -> Iterator[Path]:
        """Write down during the block what becomes of the chart's pods, one event a line, for `without`."""
        rows = self.cluster.work / "pods"
        output = r"""{.type} {.object.metadata.name} {.object.metadata.labels.app\.kubernetes\.io/component}"""
        output += r""" {.object.spec.nodeName} {.object.status.conditions[?(@.type=="Ready")].status}{'\n'}"""
        words = ("pods", f"--namespace={NAMESPACE}", "--output-watch-events", f"--output=jsonpath={output}")
        with self.cluster.watching(rows, *words):
            yield rows

    def without(self, rows: Path, component: str) -> list[set[str]]:
        """Return the nodes that had no pod of a component that is ready, after each event."""
        ready: dict[str, str] = {}
        found = []
        for kind, name, of, *more in (line.split() for line in rows.read_text().splitlines()):
            if of == component:
                ready.pop(name, None)
                if kind != "DELETED" and more[1:] == ["True"]:
                    ready[name] = more[0]
                found.append(self.nodes.keys() - ready.values())
        return found


def serving(prefers: str) -> dict[str, Any]:
    """Return a Deployment of one pod with a GPU, which prefers a node, and soon leaves one that is away."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [prefers]}
    term = {"weight": 100, "preference": {"matchExpressions": [here]}}
    spec = {
        **workload.spec({GPU: 1}),
        "restartPolicy": "Always",
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}},
        "tolerations": [
            {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
            for why in AWAY
        ],
    }
    labels = {"app": "serving"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    said = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serving"}, "spec": said}


@contextlib.contextmanager
def fleet(hosts: dict[str, Host], *images: Path) -> Iterator[Fleet]:
    """Run a cluster of nodes.

    Args:
        hosts: machines with GPUs by the names of their nodes, the first of which is kube.NAME.
        images: as for `plane.cluster`; that of gpushim gets a second tag, `next`, on each node.
    """
    with plane.cluster(*images, controllers=SOON, nodes=hosts) as cluster, contextlib.ExitStack() as stack:
        others = enumerate([*hosts][1:], 2)
        with ThreadPoolExecutor() as several:
            joining = {
                name: several.submit(stack.enter_context, plane.joined(cluster, name, number, *images))
                for number, name in others
            }
            nodes = {NAME: cluster, **{name: one.result() for name, one in joining.items()}}
        for name, node in nodes.items():
            node.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{hosts[name].root}"\n')
            node.node.engine.ctr("images", "tag", image.NAME, f"{REPOSITORY}:next", namespace="k8s.io")
        yield Fleet(cluster, nodes, hosts)
