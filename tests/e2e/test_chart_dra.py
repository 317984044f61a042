"""The chart with the DRA driver: what it renders to, and whether both halves understand that."""

from __future__ import annotations

import pytest

from e2e import charts, helm
from e2e.charts import CLAIMS, LABELLER, NODE, PLUGIN, containers
from e2e.helm import Values
from gpuplugin.dra import command_line
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
    given = command_line.command.make_context("x", [*found[container]["args"]]).params
    assert given["cluster"] is (container == "cluster")
    mounted = {row["mountPath"]: row["name"] for row in found[container]["volumeMounts"]}
    assert mounted[given["socket"].rpartition("/")[0]] == "halves"
    if container == "node":
        assert int(given["user"]) == found["cluster"]["securityContext"]["runAsUser"]
        assert given["taint_effect"] == ("NoExecute",)


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
