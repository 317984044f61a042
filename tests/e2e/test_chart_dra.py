"""The chart with the DRA driver: what it renders to, and whether both halves understand that."""

from __future__ import annotations

from typing import Any

import pytest

from e2e import charts, helm
from e2e.charts import CLAIMS, FEATURE, LABELLER, NODE, PLUGIN, TWO, containers
from e2e.helm import Values
from gpuplugin.cli import build_command
from gpuplugin.settings import flags
from gpushim.containers.kubelet import OWN_DRIVER

DRIVER = "DaemonSet gpushim-dra-driver"
DEFAULT = {PLUGIN, NODE, "RuntimeClass nvidia", *LABELLER}
DRA = {
    *(DRIVER, "ServiceAccount gpushim-dra-driver", "DeviceClass gpu.nvidia.com", "DeviceClass mig.nvidia.com"),
    *(name.replace("-node", "-dra-driver") for name in LABELLER[1:]),
}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (CLAIMS, {*DEFAULT, *DRA}),
        ({**CLAIMS, "plugin": {"enabled": False}}, {*DEFAULT, *DRA} - {PLUGIN}),
        ({"plugin": None, "dra": None}, DEFAULT),  # as values that --reuse-values takes from an older chart
        ({"uninstall": True, **CLAIMS}, {"DaemonSet gpushim-uninstall", *LABELLER}),
    ],
)
def test_objects(values: Values, wanted: set[str]) -> None:
    assert set(charts.objects(values)) == wanted


def given(container: dict[str, Any]) -> dict[str, Any]:
    """Return what a container's program is told."""
    (program,) = container["command"]
    assert program.endswith("/gpushim-device-plugin")
    return dict(build_command().make_context("x", flags.spell_flags(container["args"])).params)


@pytest.mark.parametrize(
    ("name", "box", "fronts"), [(PLUGIN, "device-plugin", "device-plugin,dra"), (DRIVER, "node", "dra")]
)
def test_both_halves_understand_their_arguments(name: str, box: str, fronts: str) -> None:
    """And they meet at one socket, in a volume of both, where the one lets the user of the other in."""
    found = containers(charts.objects({"dra": {"enabled": True, "taintEffect": "NoExecute"}})[name])
    for half in (box, "cluster"):
        mounted = {row["mountPath"]: row["name"] for row in found[half]["volumeMounts"]}
        assert mounted[given(found[half])["socket"].rpartition("/")[0]] == "halves"
        assert given(found[half])["cluster"] is (half == "cluster")
    told = given(found[box])
    assert int(told["user"]) == found["cluster"]["securityContext"]["runAsUser"]
    assert (told["taint_effect"], told["fronts"], told["kubeconfig"]) == (("NoExecute",), (fronts,), ("",))


def test_each_node_has_one_of_them() -> None:
    """Of those with the label the one for claims alone; without the device plugin that is for all nodes."""
    key = "gpushim/by-claims"
    for values, wanted in (
        (CLAIMS, {PLUGIN: ["NotIn"], DRIVER: ["In"]}),
        ({**CLAIMS, "plugin": {"enabled": False}}, {DRIVER: []}),
        ({}, {PLUGIN: []}),
    ):
        rendered = charts.objects(values)
        assert {name for name in (PLUGIN, DRIVER) if name in rendered} == {*wanted}
        for name, operators in wanted.items():
            text = rendered[name]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            (term,) = text["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            rows = [row for row in term["matchExpressions"] if row["key"] == key]
            assert [row["operator"] for row in rows] == operators
            assert all(row["values"] == ["true"] for row in rows)


def test_settings_reach_claims_and_the_half_with_the_token_follows_the_label() -> None:
    chosen = {"exclude": ["0", "1"], "allocation-policy": "packed", "disable-healthchecks": "79", "gds": True}
    variables = [{"name": "DP_ENABLE_HEALTHCHECKS", "value": "13"}]
    rendered = charts.objects({**CLAIMS, **TWO, "settings": chosen, "env": variables})
    found = containers(rendered[DRIVER])
    told = {key: value[0] for key, value in given(found["node"]).items() if isinstance(value, tuple) and value}
    folder = "/run/gpushim-cluster"
    assert (told["exclude"], told["shared_devices_allocation_policy"]) == ("0,1", "packed")
    assert (told["disable_healthchecks"], told["config_file"]) == ("79", "/profiles/config.yaml")
    assert told["profile_file"] == f"{folder}/profile"
    assert variables[0] in found["node"]["env"]
    assert variables[0] not in found["cluster"]["env"]
    assert f"--profile-file={folder}/profile" in found["cluster"]["args"]
    writable = {name for name, one in found.items() for row in one["volumeMounts"]
                if row["mountPath"] == folder and not row.get("readOnly")}  # fmt: skip
    assert writable - {"profile"} == {"cluster"}
    accounts = {row["name"] for row in rendered["ClusterRoleBinding gpushim-gpushim-nodes"]["subjects"]}
    for name in (PLUGIN, DRIVER):
        assert {rendered[name]["spec"]["template"]["spec"]["serviceAccountName"]} == accounts


def test_the_half_with_the_token_alone_writes_which_layout_counts() -> None:
    rendered = charts.objects({**CLAIMS, "migLayout": True})
    for name, box in ((PLUGIN, "device-plugin"), (DRIVER, "node")):
        found = containers(rendered[name])
        for part, is_read_only in ((box, True), ("cluster", False)):
            folder = given(found[part])["mig_layout_file"][0].rpartition("/")[0]
            (mount,) = (row for row in found[part]["volumeMounts"] if row["mountPath"] == folder)
            assert bool(mount.get("readOnly")) is is_read_only
        assert "profile" not in found
    assert {row["name"] for row in rendered["ClusterRoleBinding gpushim-gpushim-nodes"]["subjects"]}


def test_labels_are_the_device_plugins_to_post() -> None:
    rendered = charts.objects({**CLAIMS, **FEATURE})
    for name, posts in ((PLUGIN, True), (DRIVER, False)):
        assert given(containers(rendered[name])["cluster"])["node_feature"] is posts


@pytest.mark.parametrize(
    ("address", "port"), [(":9401", 9401), ("[::]:9401", 9401), ("", None), ("unix:/run/gpushim/m", None)]
)
def test_metrics_and_probes_are_as_the_device_plugins(address: str, port: int | None) -> None:
    values = {**CLAIMS, "settings": {"metrics": address}, "metricsToken": {"secret": "scrape"} if port else None}
    found = charts.objects(values)
    mine, theirs = (containers(found[name])[box] for name, box in ((DRIVER, "node"), (PLUGIN, "device-plugin")))
    for key in ("ports", "livenessProbe", "readinessProbe"):
        assert mine.get(key) == theirs.get(key)
    assert given(mine)["metrics"] == given(theirs)["metrics"]
    if port:
        assert mine["ports"] == [{"name": "metrics", "containerPort": port}]
        mounted = {row["mountPath"]: row["name"] for row in mine["volumeMounts"]}
        assert mounted[given(mine)["metrics_token_file"][0].rpartition("/")[0]] == "metrics-token"


@pytest.mark.parametrize("kind", ["PodMonitor", "NetworkPolicy"])
def test_whoever_scrapes_the_device_plugin_scrapes_the_driver(kind: str) -> None:
    found = charts.objects({**charts.ALL, **CLAIMS})
    spec = found[f"{kind} gpushim-device-plugin"]["spec"]
    selector = spec.get("selector") or spec["podSelector"]
    (one,) = selector["matchExpressions"]
    for name, chosen in ((DRIVER, True), (PLUGIN, True), (NODE, False)):
        labels = found[name]["spec"]["template"]["metadata"]["labels"]
        assert (selector["matchLabels"].items() <= labels.items() and labels[one["key"]] in one["values"]) is chosen


@pytest.mark.parametrize(("switch", "resource"), [(True, "nvidia.com/gpu"), (None, "nvidia.com/gpu"), (False, None)])
def test_the_class_has_the_drivers_name_and_the_extended_resource(switch: bool | None, resource: str | None) -> None:
    found = charts.objects({"dra": {"enabled": True, "extendedResource": switch}})[f"DeviceClass {OWN_DRIVER}"][
        "spec"
    ]
    assert found.get("extendedResourceName") == resource
    assert f"device.driver == '{OWN_DRIVER}'" in found["selectors"][0]["cel"]["expression"]


@pytest.mark.parametrize(("plugin", "claims"), [(True, False), (True, True), (False, True)])
def test_the_notes_name_what_there_is(plugin: bool, claims: bool) -> None:
    text = helm.notes(charts.CHART, {"plugin": {"enabled": plugin}, "dra": {"enabled": claims}})
    for words in ("daemonset/gpushim-device-plugin\n", "allocatable.nvidia", "runtimeClassName: nvidia"):
        assert (words in text) is plugin
    for words in ("daemonset/gpushim-dra-driver\n", "kubectl get resourceslices\n", "DeviceClass"):
        assert (words in text) is claims
