"""The Helm chart: what it renders to, whether the plugin understands that, and which values Helm refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import charts, helm
from e2e.charts import (
    ACCOUNT,
    ALL,
    BUDGET,
    CLAIMS,
    FEATURE,
    FEATURES,
    LABELLER,
    MONITOR,
    NODE,
    NODES,
    PLUGIN,
    POLICY,
    RULE,
    TIMES,
    TWO,
    containers,
)
from e2e.helm import RefusedError, Values
from gpuplugin import cli
from gpuplugin.node import main as node
from gpuplugin.settings import flags, profiles, settings, sharing

UNINSTALL = "DaemonSet gpushim-uninstall"
FOREIGN = yaml.safe_load((charts.CHART / "values.schema.json").read_text())["patternProperties"]
X = {name.replace("-gpushim-", "-x-").replace(" gpushim-node", " x-node") for name in LABELLER}
DEFAULT = {PLUGIN, NODE, "RuntimeClass nvidia", *LABELLER}
PARTED = sharing.read({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}}, "x", [])
SETTINGS: Values = {
    "device-list-strategy": ["envvar"],
    "imex-channels": [0, 65535],
    "imex-required": True,
    "allocation-policy": "packed",
    "cdi-annotation-prefix": "x.org/",
    "exclude": ["0", "1:0"],
    "metrics": "unix:/run/gpushim/m",
    "pass-device-specs": False,
}


def told(values: Values, container: str = "device-plugin") -> list[str]:
    args: list[str] = containers(charts.objects(values)[PLUGIN])[container]["args"]
    return args


def understood(args: list[str]) -> dict[str, Any]:
    """Let the plugin's own code read arguments, and return the settings that it then has."""
    context = cli.build_command().make_context(cli.PROGRAM, flags.spell_flags(args))
    given = flags.flag_values({name: value for name, value in context.params.items() if isinstance(value, tuple)})
    return settings.resolve(given, {}, {}).values


@pytest.mark.parametrize("values", [{}, ALL, CLAIMS, {"uninstall": True}])
def test_lint_has_nothing_to_say(values: Values) -> None:
    assert helm.lint(charts.CHART, values) == []


def test_the_labels_file_goes_from_the_directory_that_was_chosen() -> None:
    found = containers(charts.objects({"uninstall": True, "labels": {"directory": "/opt/x"}})[UNINSTALL])
    words = found["uninstall"]["args"]
    context = node.main.commands[words[0]].make_context("uninstall", words[1:])
    assert context.params["labels"] == "/opt/x"


@pytest.mark.parametrize("root", [None, "/", "/run/nvidia/driver"])
def test_the_driver_root_is_one_value_for_all_nodes(root: str | None) -> None:
    both = charts.containers(charts.objects({"nvidiaDriverRoot": root})["DaemonSet gpushim-node"])
    for name in ("install", "keep"):  # a node that gets its first device later, too
        said = [word for word in both[name]["args"] if word.startswith("--driver-root")]
        assert said == (["--driver-root=/run/nvidia/driver"] if root and root != "/" else [])


@pytest.mark.parametrize("values", [{}, {"engine": "crio", "cdi": True, "setAsDefault": True, "restart": False}])
def test_keep_is_told_what_install_is_told(values: Values) -> None:
    """For on a node that gets its first device later it is the one that installs."""
    args = {name: one["args"] for name, one in containers(charts.objects({"node": values})[NODE]).items()}
    contexts = [node.main.commands[word].make_context(word, args[word][1:]) for word in ("install", "keep")]
    assert contexts[0].params == contexts[1].params
    assert contexts[0].params["restart"] is values.get("restart", True)


@pytest.mark.parametrize("name", charts.FILES)
def test_plain_files_are_what_the_chart_renders_to(name: str) -> None:
    assert (charts.KUBERNETES / name).read_text() == charts.plain(name), "run tools/manifests"


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, DEFAULT),
        ({"node": {"enabled": False}, "runtimeClass": {"create": False}}, {PLUGIN}),
        ({"uninstall": True, **ALL}, {UNINSTALL, *LABELLER}),
        ({"uninstall": True, "node": {"enabled": False}}, {UNINSTALL, *LABELLER}),
        ({"uninstall": True, "node": {"label": False}}, {UNINSTALL}),
        ({"node": {"label": False}}, DEFAULT - {*LABELLER}),
        ({"config": {"map": {"only": ""}}}, {*DEFAULT, "ConfigMap gpushim-profiles"}),
        ({"config": {"name": "mine"}}, {*DEFAULT, ACCOUNT, *NODES}),
        (TWO, {*DEFAULT, "ConfigMap gpushim-profiles", ACCOUNT, *NODES}),
        (FEATURE, {*DEFAULT, ACCOUNT, *FEATURES}),
        (ALL, {*DEFAULT, "ConfigMap gpushim-profiles", ACCOUNT, *NODES, *FEATURES, MONITOR, RULE, POLICY, BUDGET}),
        ({**FEATURE, "serviceAccount": {"create": False, "name": "mine"}}, {*DEFAULT, *FEATURES}),
        (
            {"fullnameOverride": "x", "runtimeClassName": None, "node": {"setAsDefault": True}},
            {"DaemonSet x-device-plugin", "DaemonSet x-node", *X},
        ),
    ],
)
def test_objects(values: Values, wanted: set[str]) -> None:
    assert set(charts.objects(values)) == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {"fail-on-init-error": False, "metrics": ":9400", "kubelet-dir": "/var/lib/kubelet"}),
        (
            {
                "migStrategy": "mixed",
                "failOnInitError": True,
                "deviceListStrategy": "volume-mounts,cdi-cri",
                "deviceIDStrategy": "index",
                "compatWithCPUManager": True,
                "gdsEnabled": True,
                "mofedEnabled": True,
                "gdrcopyEnabled": True,
                "nvidiaDriverRoot": "/",
                "mps": {"root": "/run/nvidia/mps"},
                "deviceDiscoveryStrategy": "auto",
                "cdi": {"nvidiaHookPath": None},
                "kubeletDir": "/k",
            },
            {
                "mig-strategy": "mixed",
                "fail-on-init-error": True,
                "pass-device-specs": True,
                "gds": True,
                "device-list-strategy": ["volume-mounts", "cdi-cri"],
                "device-id-strategy": "index",
                "mofed": True,
                "gdrcopy": True,
                "kubelet-dir": "/k",
            },
        ),
        ({"settings": SETTINGS}, SETTINGS),
        (
            {"labels": {"publish": "file", "interval": 1000000, "noTimestamp": True}},
            {"labels-file": "/features.d/gpushim", "labels-interval": 1000000, "labels-no-timestamp": True},
        ),
    ],
)
def test_the_plugin_understands_what_it_is_told(values: Values, wanted: dict[str, Any]) -> None:
    found = understood(told(values))
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("values", "container", "once", "feature"),
    [(ALL, "profile", True, False), (ALL, "cluster", False, True), (TWO, "cluster", False, False)],
)
def test_the_containers_at_the_api_server_understand_theirs(
    values: Values, container: str, once: bool, feature: bool
) -> None:
    said = cli.build_command().make_context(cli.PROGRAM, told(values, container)).params
    assert (said["cluster"], said["once"], said["node_feature"]) == (True, once, feature)
    assert said["profile_file"] == ("/run/gpushim-cluster/profile",)
    assert said["labels_file"] == (("/run/gpushim-labels/labels",) if feature else ())


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"default": "b"}, "b"),
        ({}, "default"),
        ({"fallbackStrategies": ["empty", "named"]}, ""),
        ({"fallbackStrategies": ["single"]}, ""),
        ({"fallbackStrategies": ["single"], "map": {"b": TIMES, "default": None, "c": None}}, "b"),
    ],
)
def test_profiles_become_one_file(config: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    given = {"map": {"b": TIMES, "default": "version: v1", "c": ""}, **config}
    given["map"] = {name: text for name, text in given["map"].items() if text is not None}
    rendered = charts.objects({"config": given})
    (tmp_path / "config.yaml").write_text(rendered["ConfigMap gpushim-profiles"]["data"]["config.yaml"])
    found = profiles.read(str(tmp_path / "config.yaml"), "")
    assert found.profile == wanted
    assert sharing.read(found.table.get("sharing"), "x", []) == (() if wanted != "b" else PARTED)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"settings": {"mig-strategie": "single"}}, "/settings': additional properties 'mig-strategie' not allowed"),
        ({"gfdd": {"enabled": True}}, "additional properties 'gfdd' not allowed"),
        (
            {"gfd": {"enabled": True}},
            "gfd is a value of NVIDIA's charts .* write labels.publish: file",
        ),
        ({"node-feature-discovery": {}}, "write nodeFeatureDiscovery: true for its label"),
        ({"kubeletPlugin": {}}, "kubeletPlugin is a value of NVIDIA's charts .* write kubeletDir"),
        ({"resources": {"gpus": {"enabled": True}}}, "resources.gpus is a value .* write dra.enabled"),
        ({"resources": {"computeDomains": {}}}, "resources.computeDomains is a value .* no ComputeDomains"),
        (
            {"plugin": {"enabled": False}},
            "plugin.enabled is false and dra.enabled, too, so nothing would give out GPUs",
        ),
        ({"toolkit": {"enabled": False}}, "toolkit is a value .* node.enabled, node.engine"),
        ({"securityContext": {}}, "write podSecurityContext; what the containers may is fixed"),
        ({"cdi": {"enabled": True}}, r"cdi.enabled is a value .* settings.device-list-strategy: \[cdi-cri\]"),
        ({"runtimeClassName": ""}, "runtimeClassName is empty, so the device plugin would get no GPU"),
        ({"runtimeClassName": None}, "write nvidia there, or node.setAsDefault: true"),
        *(
            ({name: {"enabled": True}, "settings": {"metrics": ""}}, f"{name}.enabled needs a port")
            for name in ("prometheusRule", "networkPolicy")
        ),
        ({"image": {"digest": "sha256:12"}}, "/image/digest': 'sha256:12' does not match pattern"),
        ({"image": {"repository": "a.example:5000/gpushim:0.1"}}, "/image/repository': .* does not match pattern"),
        ({"image": "gpushim:1"}, "/image': got string, want null or object"),
        ({"settings": {"metrics": ":80\n"}}, "/settings/metrics'"),
        ({"migStrategy": "all"}, "/migStrategy': value must be one of 'none', 'single', 'mixed', <nil>"),
        ({"deviceListStrategy": "envvar,cdi"}, "/deviceListStrategy'"),
        ({"kubeletDir": "/x y"}, "/kubeletDir': '/x y' does not match pattern"),
        ({"kubeletDir": None}, "kubeletDir is empty; write where kubelet keeps its files"),
        ({"image": None}, "image.repository is empty; write where the image is"),
        ({"config": {"map": {"a b": ""}}}, 'config.map has the profile "a b", which no label of a node can name'),
        ({"config": {"map": {"a": {"version": "v1"}}}}, "/config/map/a': got object, want string"),
        ({"config": {"map": {"a": "- x"}}}, "config.map.a is no file of NVIDIA's plugin: "),
        ({"config": {"map": {"a": "version: v2"}}}, 'config.map.a has the version "v2"; only v1 is known'),
        (
            {"config": {"map": {"a": ""}, "default": "b"}},
            'config.default is "b", which config.map does not have; it has a',
        ),
        ({"config": {"default": "b"}}, 'config.default is "b", which config.map does not have; it has nothing'),
        (
            {"config": {"name": "x", "map": {"a": ""}}},
            r'config.map and config.name \("x"\) both say what the profiles are',
        ),
        ({"config": {"name": "x", "default": "a"}}, 'profiles are in the ConfigMap "x"; write default: a into'),
        (
            {"gdsEnabled": True, "settings": {"gds": True}},
            "gdsEnabled and settings.gds are one setting; write one of them",
        ),
        (
            {"nvidiaDriverRoot": "/run/nvidia/driver", "node": {"enabled": False}},
            'nvidiaDriverRoot is "/run/nvidia/driver", and node.enabled is false: write root under',
        ),
        ({"nvidiaDriverRoot": "run/nvidia"}, "/nvidiaDriverRoot'"),
        ({"deviceDiscoveryStrategy": "nvml"}, 'deviceDiscoveryStrategy is "nvml", which is not decided here'),
        ({"mps": {"root": "/x"}}, 'mps.root is "/x", .* MPS\'s pipes are in /run/gpushim/mps'),
        ({"cdi": {"nvidiaHookPath": "/x"}}, 'cdi.nvidiaHookPath is "/x", .* CDI specs name gpushim-hook'),
        (
            {"podMonitor": {"enabled": True}, "settings": {"metrics": "127.0.0.1:9400"}},
            'podMonitor.enabled needs a port .* settings.metrics is "127.0.0.1:9400"; write ":9400" there',
        ),
        ({"serviceAccount": {"create": False}, **FEATURE}, "serviceAccount.create is false, and no name is"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence(values: Values, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        charts.objects(values)


def test_null_removes_what_need_not_be_there() -> None:
    given = yaml.safe_load((charts.CHART / "values.yaml").read_text())
    kept = ("image", "kubeletDir", "plugin", "runtimeClassName")
    found = charts.objects({key: None for key in given if key not in kept})
    assert set(found) == {PLUGIN}
    assert not {"tolerations", "priorityClassName"} & set(found[PLUGIN]["spec"]["template"]["spec"])


@pytest.mark.parametrize(
    ("metrics", "port"),
    [(":9400", 9400), ("[::]:9401", 9401), ("127.0.0.1:9400", 0), ("unix:/run/gpushim/m", 0), ("", 0)],
)
def test_kubelet_probes_where_the_plugin_answers(metrics: str, port: int) -> None:
    found = containers(charts.objects({"settings": {"metrics": metrics}})[PLUGIN])["device-plugin"]
    assert [row["containerPort"] for row in found.get("ports", ())] == ([port] if port else [])
    assert ("livenessProbe" in found, "readinessProbe" in found) == (bool(port),) * 2
    assert not any("hostPort" in row for row in found.get("ports", ()))


@pytest.mark.parametrize("name", [name for words in FOREIGN for name in words.strip("^()$").split("|")])
def test_each_of_nvidias_values_has_a_sentence(name: str) -> None:
    with pytest.raises(RefusedError, match=f"{name} is a value of NVIDIA's charts and not of this one; [a-z]"):
        charts.objects({name: None if name == "gfd" else {}})


def test_what_pods_name_comes_before_them_in_the_plain_file() -> None:
    kinds = [each["kind"] for each in yaml.safe_load_all(charts.plain("gpushim.yaml"))]
    policy = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    rights = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]
    assert kinds == ["Namespace", "RuntimeClass", *policy, *rights, "DaemonSet", "DaemonSet"]


@pytest.mark.parametrize("values", [{}, ALL, CLAIMS, {"uninstall": True}])
def test_openshifts_constraints_allow_what_pods_ask_for(values: Values) -> None:
    allowed = yaml.safe_load((charts.KUBERNETES / "openshift-scc.yaml").read_text())
    for each in (one for one in charts.objects(values).values() if one["kind"] == "DaemonSet"):
        pod = each["spec"]["template"]["spec"]
        assert f"system:serviceaccount:gpushim:{pod['serviceAccountName']}" in allowed["users"]
        for key in ("hostPID", "hostNetwork", "hostIPC"):
            assert allowed[f"allow{key[0].upper()}{key[1:]}"] or not pod.get(key)
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {*allowed["volumes"]}
        for container in containers(each).values():
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"].get("capabilities", {}).get("add")
