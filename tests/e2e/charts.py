"""The chart, what it renders to, and the plain files beside it, which `tools/manifests` writes by this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e import helm
from e2e.helm import Values

KUBERNETES = Path(__file__).parents[2] / "packaging" / "kubernetes"
CHART = KUBERNETES / "chart"
NAMESPACE = """# {what}.
# tools/manifests writes this file; chart/values.yaml tells what can be changed.
apiVersion: v1
kind: Namespace
metadata:
  name: gpushim
  labels:
    # gpushim-node is privileged, and the device plugin mounts directories of the node.
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/audit: privileged
    pod-security.kubernetes.io/warn: privileged
"""
PLUGIN, NODE = "DaemonSet gpushim-device-plugin", "DaemonSet gpushim-node"
RULE, POLICY = "PrometheusRule gpushim-device-plugin", "NetworkPolicy gpushim-device-plugin"
BUDGET = "PodDisruptionBudget gpushim-device-plugin"
ACCOUNT, MONITOR = "ServiceAccount gpushim-device-plugin", "PodMonitor gpushim-device-plugin"
NODES = ("ClusterRole gpushim-gpushim-nodes", "ClusterRoleBinding gpushim-gpushim-nodes")
FEATURES = ("Role gpushim-device-plugin", "RoleBinding gpushim-device-plugin")
# Of gpushim-node, which labels its node.
_POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "ClusterRoleBinding")
LABELLER = ("ServiceAccount gpushim-node", *(f"{kind} gpushim-gpushim-node" for kind in _POLICY))
# Values for tests: two profiles; labels as an object; and all that brings more objects.
TIMES = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"
TWO: Values = {"config": {"map": {"whole": "version: v1", "parted": f"version: v1\n{TIMES}"}, "default": "whole"}}
FEATURE: Values = {"labels": {"publish": "node-feature"}}
CLAIMS: Values = {"dra": {"enabled": True}}
PEER: Values = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
ALL: Values = {
    **TWO,
    **FEATURE,
    "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "x"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "x"}},
    "metricsToken": {"secret": "scrape"},
    "networkPolicy": {"enabled": True, "from": [PEER]},
    "podDisruptionBudget": {"enabled": True, "minAvailable": 3},
}
# In the plain files before all else: what pods name, and what holds rights to their bounds.
FIRST = ("RuntimeClass", "ValidatingAdmissionPolicy")
FILES: dict[str, tuple[str, Values]] = {
    "gpushim.yaml": ("gpushim with the defaults of its chart, for Kubernetes 1.30 and newer", {}),
    "uninstall.yaml": ("What takes gpushim off the nodes, when gpushim.yaml is deleted", {"uninstall": True}),
}


def objects(values: Values | None = None) -> dict[str, dict[str, Any]]:
    """Return what the chart renders to, by kind and name, as in `DaemonSet gpushim-node`.

    Raises:
        RefusedError: the schema or a template refuses the values.
    """
    found = [each for each in yaml.safe_load_all(helm.template(CHART, values)) if each]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def containers(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the containers of a DaemonSet by name, those that run first among them."""
    pod = workload["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*pod.get("initContainers", ()), *pod["containers"])}


def plain(name: str) -> str:
    """Return the text of a plain file.

    Args:
        name: one of FILES.
    """
    what, values = FILES[name]
    texts = helm.template(CHART, values).split("---\n")[1:]
    texts.sort(key=lambda text: not any(f"kind: {kind}" in text for kind in FIRST))
    return NAMESPACE.format(what=what) + "".join(f"---\n{text.rstrip()}\n" for text in texts)


def main() -> None:
    """Write the plain files."""
    for name in FILES:
        (KUBERNETES / name).write_text(plain(name))


if __name__ == "__main__":
    main()
