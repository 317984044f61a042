"""What the chart's objects may in a cluster, and whether a real API server takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import charts, helm, nodetoken, pages
from e2e.apiserver import Api, api
from e2e.charts import ACCOUNT, ALL, CLAIMS, FEATURE, FEATURES, NODES, PLUGIN, TWO
from e2e.definitions import FOREIGN, definition
from e2e.helm import Values

SOMEWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    """A real API server that knows PodMonitors and NodeFeatures, and has the namespace."""
    with api() as found:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushim"}}
        done = found.kubectl("apply", "--filename=-", objects=[namespace, *map(definition, FOREIGN)])
        assert not done.returncode, done.stderr
        names = [f"crd/{plural}.{group}" for plural, (group, *_) in FOREIGN.items()]
        done = found.kubectl("wait", "--for=condition=Established", "--timeout=50s", *names)
        assert not done.returncode, done.stderr
        yield found


@pytest.mark.parametrize(
    "values",
    [
        {},
        ALL,
        CLAIMS,
        {"uninstall": True},
        {
            "image": {"repository": "localhost:5000/gpushim", "digest": f"sha256:{'0' * 64}"},
            "podLabels": {"a": "b"},
            "imagePullSecrets": [{"name": "x"}],
            "visibleDevices": "volume-mounts",
            "podAnnotations": {"a": "1"},
            "labels": {"publish": "file"},
            "nodeSelector": {"gpu": "yes"},
            "config": {"name": "mine"},
            "env": [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"}],
            "resources": {"limits": {"cpu": 1}},
            "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SOMEWHERE}},
        },
    ],
)
def test_the_api_server_takes_every_object(server: Api, values: Values) -> None:
    rendered = charts.objects(values)
    done = server.kubectl(
        *("apply", "--dry-run=server", "--validate=true", "--namespace=gpushim", "--filename=-", "--output=name"),
        objects=[*rendered.values()],
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(rendered)), done.stderr


RIGHTS = (
    *(("list", "nodes", True), ("watch", "nodes", True), ("get", "nodes", False), ("patch", "nodes", False)),
    *(("create", "nodefeatures", True), ("patch", "nodefeatures", True), ("get", "nodefeatures", True)),
    *(("delete", "nodefeatures", False), ("list", "nodefeatures", False)),
    *(("list", "pods", False), ("get", "secrets", False), ("create", "pods", False)),
)


def test_rights_are_what_the_container_needs(server: Api) -> None:
    rendered = charts.objects(ALL)
    rights = [rendered[name] for name in (ACCOUNT, *NODES, *FEATURES)]
    assert not server.kubectl("apply", "--filename=-", objects=rights).returncode
    user = ("--as=system:serviceaccount:gpushim:gpushim-device-plugin", "--namespace=gpushim")
    said = {row[:2]: server.kubectl("auth", "can-i", *row[:2], *user).stdout.strip() for row in RIGHTS}
    assert said == {row[:2]: "yes" if row[2] else "no" for row in RIGHTS}
    feature = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": {"name": "gpushim-n"}}
    words = ("apply", "--server-side", "--force-conflicts", "--field-manager=gpushim", "--validate=false")
    for _ in range(2):  # it is made, and changed
        done = server.kubectl(*words, "--filename=-", *user, objects=[feature])
        assert not done.returncode, done.stderr


@pytest.fixture(scope="module")
def bound(server: Api) -> str:
    """A token of gpushim-node's pod on one of two nodes, when the policy holds; what rights it has are there."""
    return nodetoken.bound(server)


def test_gpushim_node_changes_its_nodes_label_alone(server: Api, bound: str, tmp_path: Path) -> None:
    found = nodetoken.answers(server, tmp_path, bound, [row[:2] for row in nodetoken.PATCHES])
    for (path, body, why), answer in zip(nodetoken.PATCHES, found, strict=True):
        assert re.search(why, answer) if why else not answer, f"{path} {body}: {answer}"
    now = json.loads(server.kubectl("get", "node", "mine", "--output=json").stdout)
    assert (now["metadata"]["labels"], now["status"].get("capacity")) == ({"kept": "x"}, None)
    unbound = nodetoken.token(server)
    (answer,) = nodetoken.answers(server, tmp_path, unbound, [nodetoken.PATCHES[0][:2]])
    assert "gpushim-node may change its own node alone" in answer


def test_others_are_not_held_to_it(server: Api, bound: str) -> None:
    assert bound
    assert not server.kubectl("label", "node", "others", "a=b", f"{nodetoken.LABEL}=x").returncode
    assert not server.kubectl("label", "nodes", "--all", f"{nodetoken.LABEL}-").returncode  # as the page has it
    user = "--as=system:serviceaccount:gpushim:gpushim-node"
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    found = {verb for verb in verbs if not server.kubectl("auth", "can-i", verb, "nodes", user).returncode}
    assert found == {"patch"}


def test_the_api_server_would_say_what_is_wrong(server: Api) -> None:
    rendered = charts.objects({})
    rendered[PLUGIN]["spec"]["template"]["spec"]["hostPid"] = True
    done = server.kubectl(
        "apply", "--dry-run=server", "--validate=true", "--filename=-", objects=[*rendered.values()]
    )
    assert done.returncode
    assert "hostPid" in done.stderr


# Values that go there and back; together they are all that change an object which stays.
CHANGES: dict[str, Values] = {
    "others": {
        "image": {"tag": "x", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "x"}],
        "visibleDevices": "volume-mounts",
        "node": {
            "engine": "crio",
            "restart": False,
            "cdi": True,
            "setAsDefault": True,
            "label": False,
            "maxUnavailable": "5%",
        },
        "runtimeClassName": "other",
        "kubeletDir": "/k",
        "migStrategy": "mixed",
        "settings": {"metrics": ""},
        "labels": {"publish": "file", "interval": 5, "noTimestamp": True},
        "nodeFeatureDiscovery": True,
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [],
        "priorityClassName": "",
        "updateStrategy": {"type": "OnDelete"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "podSecurityContext": {"seLinuxOptions": {"type": "t"}},
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": 1}},
    },
    "what brings objects": {
        **TWO,
        **FEATURE,
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
        "metricsToken": {"secret": "scrape"},
        "podDisruptionBudget": {"enabled": True},
        "migLayout": True,
        "dra": {"enabled": True, "extendedResource": False, "taintEffect": "NoExecute"},
        "node": {"enabled": False},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SOMEWHERE}},
    },
    "claims alone": {"dra": {"enabled": True}, "plugin": {"enabled": False}},
}
# Names of objects, which stay; what takes the place of all; and what only goes together with other values.
NEVER = {
    "nameOverride",
    "fullnameOverride",
    "uninstall",
    "runtimeClass",
    "serviceAccount",
    "global",
    "cdi",
    "mps",
} | {
    *("deviceDiscoveryStrategy", "nvidiaDriverRoot"),  # change nothing
    *("deviceIDStrategy", "deviceListStrategy", "failOnInitError", "compatWithCPUManager"),  # as migStrategy
    *("gdsEnabled", "mofedEnabled", "gdrcopyEnabled"),
}
BACK = "gpushim-back"
BASE: Values = {"fullnameOverride": "back"}  # for what has no namespace


def workloads(server: Api) -> dict[str, Any]:
    """What the API server has of the DaemonSets' pods."""
    said = server.kubectl("get", "daemonsets", f"--namespace={BACK}", "--output=json").stdout
    return {row["metadata"]["name"]: row["spec"] | {"revisionHistoryLimit": 0} for row in json.loads(said)["items"]}


@pytest.fixture(scope="module")
def installed(server: Api) -> Iterator[dict[str, Any]]:
    """The chart in a namespace that has an account, and its DaemonSets as they are then."""
    for words in (("namespace", BACK), ("serviceaccount", "default", f"--namespace={BACK}")):
        done = server.kubectl("create", *words)
        assert not done.returncode, done.stderr
    helm.release(server.network, server.work / "admin", "install", charts.CHART, "gpushim", BASE, namespace=BACK)
    yield workloads(server)
    helm.release(server.network, server.work / "admin", "uninstall", "gpushim", namespace=BACK)


@pytest.mark.parametrize(("limits", "tolerates"), [({"nvidia.com/gpu": 1}, True), ({"cpu": 1}, False)])
def test_a_pod_that_asks_for_gpus_tolerates_their_nodes_taint(
    server: Api, installed: dict[str, Any], limits: Values, tolerates: bool
) -> None:
    """By ExtendedResourceToleration, as docs/operating.md has it."""
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    done = server.kubectl(
        "create", "--dry-run=server", "--output=json", f"--namespace={BACK}", "--filename=-", objects=[pod]
    )
    assert not done.returncode, done.stderr
    found = [one.get("key") for one in json.loads(done.stdout)["spec"]["tolerations"]]
    assert ("nvidia.com/gpu" in found) == tolerates


def test_the_autoscaler_of_the_page_is_one(server: Api, installed: dict[str, Any]) -> None:
    page = (pages.TOP / "docs/operating.md").read_text()
    (found,) = [yaml.safe_load(one.text) for one in pages.blocks(page) if "HorizontalPodAutoscaler" in one.text]
    words = ("create", "--dry-run=server", "--validate=true", f"--namespace={BACK}", "--filename=-")
    done = server.kubectl(*words, objects=[found])
    assert not done.returncode, done.stderr


def test_no_value_is_forgotten() -> None:
    known = {*yaml.safe_load((charts.CHART / "values.yaml").read_text())}
    assert {key for values in CHANGES.values() for key in values} == known - NEVER


@pytest.mark.parametrize("values", CHANGES.values(), ids=[*CHANGES])
def test_a_value_goes_there_and_back(server: Api, installed: dict[str, Any], values: Values) -> None:
    """Then the next pod of each DaemonSet is made, as after one has been deleted."""
    for given, same in ((values, False), ({}, True)):
        helm.release(
            *(server.network, server.work / "admin", "upgrade", charts.CHART, "gpushim", {**given, **BASE}),
            namespace=BACK,
        )
        now = workloads(server)
        assert (now == installed) == same
        for name, spec in now.items():
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec["template"]["spec"]}
            pod["metadata"] = {"name": name, "namespace": BACK}
            done = server.kubectl("create", "--dry-run=server", "--filename=-", objects=[pod])
            assert not done.returncode, done.stderr
