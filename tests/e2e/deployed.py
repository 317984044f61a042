"""What the chart has put into a cluster: whether it is rolled out, its pods, labels and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from e2e import charts, image, kube
from e2e.helm import NAMESPACE, Values
from e2e.kube import NAME
from e2e.plane import Cluster
from fakehost import Host

CHART: Path = charts.CHART
REPOSITORY = image.NAME.rpartition(":")[0]
IMAGE: Values = {"repository": REPOSITORY, "pullPolicy": "Never"}  # which is on the node already
GPU, BIG, SMALL = "nvidia.com/gpu", "nvidia.com/mig-3g.20gb", "nvidia.com/mig-1g.5gb"


def serves(cluster: Cluster, wanted: dict[str, int], node: str = NAME) -> float:
    """Wait until the API says that a node has these devices; say how long that took."""

    def said() -> bool:
        found = cluster.allocatable(node)
        return {name: int(number) for name, number in found.items() if name.startswith("nvidia.com/")} == wanted

    return cluster.wait_for(said, f"{node}: {wanted}")


def rolled_out(cluster: Cluster) -> None:
    """Wait until all DaemonSets run as they are wanted."""
    for name in cluster.get("daemonsets", f"--namespace={NAMESPACE}")["items"]:
        words = (f"daemonset/{name['metadata']['name']}", f"--namespace={NAMESPACE}")
        said = cluster.kubectl("rollout", "status", *words, "--timeout=110s", check=False)
        if "successfully rolled out" not in said:
            logs = cluster.kubectl(
                "logs", *words, "--all-pods", "--all-containers", "--prefix", "--tail=40", check=False
            )
            raise AssertionError(f"{said}\n{cluster.events()}\n{logs}")


def metrics(cluster: Cluster, node: str = NAME) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Scrape a node's device plugin as Prometheus does; return labels and value of each series, by name."""
    text = kube.fetch(cluster.place, f"http://{plugin(cluster, node)['status']['podIP']}:9400/metrics")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for row in text_string_to_metric_families(text):
        for sample in row.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def features(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the objects of which node-feature-discovery makes labels."""
    found: list[dict[str, Any]] = cluster.get("nodefeatures", f"--namespace={NAMESPACE}").get("items", [])
    return found


def plugins(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the device plugin's pods."""
    return [*cluster.pods("--selector=app.kubernetes.io/component=device-plugin", namespace=NAMESPACE).values()]


def plugin(cluster: Cluster, node: str = NAME) -> dict[str, Any]:
    """Return the pod of a node's device plugin, of which there is one."""
    (found,) = (pod for pod in plugins(cluster) if pod["spec"].get("nodeName") == node)
    return found


def labelled(cluster: Cluster, node: str = NAME) -> bool:
    """Return whether gpushim-node has labelled a node."""
    found: dict[str, str] = cluster.get("node", node)["metadata"]["labels"]
    return found.get("gpushim/installed") == "true"


def true_labels(found: dict[str, str], host: Host) -> None:
    """Assert that labels tell what the simulated host has."""
    assert found["nvidia.com/cuda.driver-version.full"] == host.driver
    assert found["nvidia.com/gpu.count"] == str(len(host.gpus))
    assert found["nvidia.com/gpu.product"] == host.gpus[0].model.replace(" ", "-")
    assert found["nvidia.com/gpu.memory"] == str(host.gpus[0].memory)
    assert found["nvidia.com/mig.strategy"] == "mixed"
    for resource in (BIG, SMALL):
        assert found[f"{resource}.count"] == "1"
        assert found[f"{resource}.product"] == f"{found['nvidia.com/gpu.product']}-MIG-{resource.partition('-')[2]}"
