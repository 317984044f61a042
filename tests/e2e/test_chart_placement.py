"""Where the chart's pods go: by its values, by node-feature-discovery's labels, and by that of gpushim-node."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e import charts, helm
from e2e.charts import NODE, PLUGIN, containers
from e2e.helm import Values
from gpuplugin.node import main as node

UNINSTALL = "DaemonSet gpushim-uninstall"
PCI = ("pci-0300_10de", "pci-0302_10de", "pci-10de")
INSTALLED = {"key": "gpushim/installed", "operator": "In", "values": ["true"]}
# The affinity of NVIDIA's chart, one of three terms.
PRESENT = {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}
NVIDIAS: Values = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [PRESENT]}]}
}


@pytest.mark.parametrize("values", [{}, {"uninstall": True}])
def test_the_container_that_labels_understands_what_it_is_told(values: Values) -> None:
    """And reads the file that install and keep write, by its own mount of the volume."""
    name, word = (UNINSTALL, "unlabel") if values else (NODE, "label")
    found = containers(charts.objects(values)[name])
    words = found[word]["args"]
    said = node.main.commands[words[0]].make_context(words[0], words[1:]).params
    assert (said["label"], said["remove"]) == (INSTALLED["key"], bool(values))
    if not values:
        folders = {row["mountPath"]: row["name"] for row in found["label"]["volumeMounts"]}
        assert folders[str(Path(said["installed"]).parent)] == "installed"
        assert folders[str(Path(said["posted"]).parent)] == "posted"
        assert said["posted"] in found["label"]["startupProbe"]["exec"]["command"][-1]
        for each in ("install", "keep"):
            assert f"--installed-file={said['installed']}" in found[each]["args"]
            assert {"name": "installed", "mountPath": "/run/gpushim-installed"} in found[each]["volumeMounts"]


ONE, OTHER = {"key": "zone", "operator": "In", "values": ["a"]}, {"matchFields": [{"key": "metadata.name"}]}


def affinity(*terms: Any) -> Values:
    required = {"nodeSelectorTerms": [*terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize("discovered", [False, True])
@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("given", [(), ({"matchExpressions": [ONE]},), ({"matchExpressions": [ONE]}, OTHER)])
def test_pods_go_where_all_wish(discovered: bool, label: bool, given: tuple[Values, ...]) -> None:
    """To nodes of each term that was given, with node-feature-discovery's label; the plugin's with gpushim-node's."""
    values = affinity(*given) if given else {}
    rendered = charts.objects({"nodeFeatureDiscovery": discovered, "node": {"label": label}, **values})
    pci = [[{**PRESENT, "key": f"feature.node.kubernetes.io/{x}.present"}] for x in PCI] if discovered else [[]]
    for name, more in ((PLUGIN, [INSTALLED] if label else []), (NODE, [])):
        wanted = [
            {**term, "matchExpressions": [*term.get("matchExpressions", ()), *one, *more]}
            for term in given or ({},)
            for one in pci
        ]
        pod = rendered[name]["spec"]["template"]["spec"]
        if discovered or more:
            assert pod["affinity"] == affinity(*wanted)["affinity"]
        else:
            assert pod.get("affinity") == values.get("affinity")


def test_before_kubernetes_1_30_no_node_is_labelled(tmp_path: Path) -> None:
    """For the policy that holds the rights to their bounds is not there."""
    for version, there in (("v1.29.15", False), ("v1.30.0-gke.5", True), ("v1.36.1+k3s1", True)):
        chart = tmp_path / version / "chart"
        shutil.copytree(charts.CHART, chart)
        rule = chart / "templates/_label.tpl"
        assert rule.read_text().count(".Capabilities.KubeVersion.Version") == 1
        rule.write_text(rule.read_text().replace(".Capabilities.KubeVersion.Version", f'"{version}"'))
        for uninstall in (False, True):
            text = helm.template(chart, {"uninstall": uninstall})
            words = ("ValidatingAdmissionPolicy", "ClusterRole", "serviceAccountToken", "gpushim/installed")
            assert [word in text for word in words] == [there] * 4
            assert ("serviceAccountName: default" in text) == (not there or not uninstall)


@pytest.mark.parametrize(
    ("values", "hinted"),
    [
        ({}, False),
        ({"nodeSelector": {"zone": "a"}}, False),
        ({"nodeSelector": {"nvidia.com/gpu.present": "true"}}, True),
        ({"affinity": {"nodeAffinity": NVIDIAS}}, True),
    ],
)
def test_the_notes_hint_at_labels_that_nobody_may_make(values: Values, hinted: bool) -> None:
    found = helm.notes(charts.CHART, values)
    assert "Pods ask for nvidia.com/gpu" in found
    assert ("If DESIRED is 0, no node has them" in found) is hinted
    assert ("write nodeFeatureDiscovery: true" in found) is hinted
