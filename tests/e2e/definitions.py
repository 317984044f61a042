"""Definitions of the custom resources that the chart makes objects of."""

from __future__ import annotations

from typing import Any

# Objects that need other definitions than Kubernetes' own.
FOREIGN = {
    "podmonitors": ("monitoring.coreos.com", "v1", "PodMonitor"),
    "prometheusrules": ("monitoring.coreos.com", "v1", "PrometheusRule"),
    "nodefeatures": ("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature"),
}


def definition(plural: str) -> dict[str, Any]:
    group, version, kind = FOREIGN[plural]
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
    }
