"""The chart with the DRA driver: what it renders to, and whether both halves understand that."""

from __future__ import annotations

import pytest

from e2e import charts, helm
from e2e.charts import CLAIMS, LABELLER, NODE, PLUGIN, TWO, containers
from e2e.helm import Values
from gpuplugin import dra_cli
from gpuplugin.dra import nvidia_flags
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


@pytest.mark.parametrize("container", ["node", "cluster"])
def test_both_halves_understand_their_arguments(container: str) -> None:
    """And they meet at one socket, in a volume of both, where the one lets the user of the other in."""
    found = containers(charts.objects({"dra": {"enabled": True, "taintEffect": "NoExecute"}})[DRIVER])
    given = dra_cli.command.make_context("x", [*found[container]["args"]]).params
    assert given["cluster"] is (container == "cluster")
    mounted = {row["mountPath"]: row["name"] for row in found[container]["volumeMounts"]}
    assert mounted[given["socket"].rpartition("/")[0]] == "halves"
    if container == "node":
        assert int(given["user"]) == found["cluster"]["securityContext"]["runAsUser"]
        assert given["taint_effect"] == ("NoExecute",)


def test_settings_of_the_plugin_reach_the_driver() -> None:
    """And its profiles, by the node's label, which the half that has the token follows."""
    given = {"exclude": ["0", "1"], "allocation-policy": "packed", "disable-healthchecks": "79", "gds": True}
    variables = [{"name": "DP_ENABLE_HEALTHCHECKS", "value": "13"}]
    rendered = charts.objects({**CLAIMS, **TWO, "settings": given, "env": variables})
    found = containers(rendered[DRIVER])
    words = flags.spell_flags(found["node"]["args"], (*nvidia_flags.OURS, *nvidia_flags.NVIDIA))
    params = dra_cli.command.make_context("x", words).params
    settings = {
        key.replace("_", "-"): value[0] for key, value in params.items() if isinstance(value, tuple) and value
    }
    folder = "/run/gpushim-cluster"
    assert settings == {
        "kubelet-dir": "/var/lib/kubelet",
        "kubeconfig": "",
        "exclude": "0,1",
        "shared-devices-allocation-policy": "packed",
        "disable-healthchecks": "79",
        "config-file": "/profiles/config.yaml",
        "profile-file": f"{folder}/profile",
    }
    assert variables[0] in found["node"]["env"]
    assert variables[0] not in found["cluster"]["env"]
    assert f"--profile-file={folder}/profile" in found["cluster"]["args"]
    writable = {name for name, one in found.items() for row in one["volumeMounts"]
                if row["mountPath"] == folder and not row.get("readOnly")}  # fmt: skip
    assert writable - {"profile"} == {"cluster"}
    nodes = [
        row for row in rendered["ClusterRole gpushim-gpushim-dra-driver"]["rules"] if row["resources"] == ["nodes"]
    ]
    assert nodes[0]["verbs"] == ["get", "list", "watch"]


@pytest.mark.parametrize(
    ("address", "port"), [(":9401", 9401), ("[::]:9401", 9401), ("", None), ("unix:/run/gpushim/m", None)]
)
def test_metrics_and_probes_are_as_the_device_plugins(address: str, port: int | None) -> None:
    """Each at the address of its own pod; a socket on the node would be one for both."""
    values = {**CLAIMS, "settings": {"metrics": address}, "metricsToken": {"secret": "scrape"} if port else None}
    found = charts.objects(values)
    mine, theirs = (containers(found[name])[box] for name, box in ((DRIVER, "node"), (PLUGIN, "device-plugin")))
    for key in ("ports", "livenessProbe", "readinessProbe"):
        assert mine.get(key) == theirs.get(key)
    given = dra_cli.command.make_context("x", [*mine["args"]]).params
    assert given["metrics"] == (address if port else "")
    if port:
        assert mine["ports"] == [{"name": "metrics", "containerPort": port}]
        mounted = {row["mountPath"]: row["name"] for row in mine["volumeMounts"]}
        assert mounted[given["token"].rpartition("/")[0]] == "metrics-token"
        volumes = [
            {row["name"]: row for row in found[name]["spec"]["template"]["spec"]["volumes"]}
            for name in (DRIVER, PLUGIN)
        ]
        assert volumes[0]["metrics-token"] == volumes[1]["metrics-token"]


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
