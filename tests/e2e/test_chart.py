"""The Helm chart: what it renders to, what Helm refuses, and what the real API server says to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import charts, helm
from e2e.apiserver import Api, api
from e2e.helm import RefusedError, Values
from gpuplugin import cli, profiles, settings, sharing

PLUGIN, NODE = "DaemonSet gpushim-device-plugin", "DaemonSet gpushim-node"
UNINSTALL = "DaemonSet gpushim-uninstall"
TIMES = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"
TWO = {"config": {"map": {"whole": "version: v1", "parted": f"version: v1\n{TIMES}"}, "default": "whole"}}
FEATURE = {"labels": {"publish": "node-feature"}}
ALL = {**TWO, **FEATURE, "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "x"}}}
DEFAULT = {PLUGIN, NODE, "RuntimeClass nvidia"}
ACCOUNT, MONITOR = "ServiceAccount gpushim-device-plugin", "PodMonitor gpushim-device-plugin"
NODES = ("ClusterRole gpushim-gpushim-nodes", "ClusterRoleBinding gpushim-gpushim-nodes")
FEATURES = ("Role gpushim-device-plugin", "RoleBinding gpushim-device-plugin")
PARTED = sharing.read({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}}, "x", [])
SOMEWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
# Objects that need other definitions than Kubernetes' own.
FOREIGN = {
    "podmonitors": ("monitoring.coreos.com", "v1", "PodMonitor"),
    "nodefeatures": ("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature"),
}


def containers(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    pod = workload["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*pod.get("initContainers", ()), *pod["containers"])}


def told(values: Values, container: str = "device-plugin") -> list[str]:
    args: list[str] = containers(charts.objects(values)[PLUGIN])[container]["args"]
    return args


def understood(args: list[str]) -> dict[str, Any]:
    """Let the plugin's own code read arguments, and return the settings that it then has."""
    context = cli.command().make_context(cli.PROGRAM, cli.spelled(args))
    flags = {name.replace("_", "-"): value for name, value in context.params.items() if isinstance(value, tuple)}
    return settings.resolve({name: value for name, value in flags.items() if value}, {}, {}).values


@pytest.mark.parametrize("values", [{}, ALL, {"uninstall": True}])
def test_lint_has_nothing_to_say(values: Values) -> None:
    assert helm.lint(charts.CHART, values) == []


@pytest.mark.parametrize("name", charts.FILES)
def test_plain_files_are_what_the_chart_renders_to(name: str) -> None:
    assert (charts.KUBERNETES / name).read_text() == charts.plain(name), "run tools/manifests"


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, DEFAULT),
        ({"node": {"enabled": False}, "runtimeClass": {"create": False}}, {PLUGIN}),
        ({"uninstall": True, **ALL}, {UNINSTALL}),
        ({"config": {"map": {"only": ""}}}, {*DEFAULT, "ConfigMap gpushim-profiles"}),
        ({"config": {"name": "mine"}}, {*DEFAULT, ACCOUNT, *NODES}),
        (TWO, {*DEFAULT, "ConfigMap gpushim-profiles", ACCOUNT, *NODES}),
        (FEATURE, {*DEFAULT, ACCOUNT, *FEATURES}),
        (ALL, {*DEFAULT, "ConfigMap gpushim-profiles", ACCOUNT, *NODES, *FEATURES, MONITOR}),
        ({**FEATURE, "serviceAccount": {"create": False, "name": "mine"}}, {*DEFAULT, *FEATURES}),
        ({"fullnameOverride": "x", "runtimeClassName": None}, {"DaemonSet x-device-plugin", "DaemonSet x-node"}),
    ],
)
def test_objects(values: Values, wanted: set[str]) -> None:
    assert set(charts.objects(values)) == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {"fail-on-init-error": False, "metrics": ":9400", "refresh": False, "kubelet-dir": "/var/lib/kubelet"}),
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
        (
            {
                "settings": {
                    "device-list-strategy": ["envvar"],
                    "imex-channels": [0, 65535],
                    "imex-required": True,
                    "allocation-policy": "packed",
                    "cdi-annotation-prefix": "x.org/",
                    "exclude": ["0", "GPU-1"],
                    "metrics": "unix:/run/gpushim/m",
                    "pass-device-specs": False,
                }
            },
            {
                "device-list-strategy": ["envvar"],
                "imex-channels": [0, 65535],
                "imex-required": True,
                "allocation-policy": "packed",
                "cdi-annotation-prefix": "x.org/",
                "exclude": ["0", "GPU-1"],
                "metrics": "unix:/run/gpushim/m",
                "pass-device-specs": False,
            },
        ),
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
        ({"gfd": {"enabled": True}}, "additional properties 'gfd' not allowed"),
        ({"image": {"digest": "sha256:12"}}, "/image/digest': 'sha256:12' does not match pattern"),
        ({"image": "gpushim:1"}, "/image': got string, want null or object"),
        ({"settings": {"metrics": "9400"}}, "/settings/metrics': '9400' does not match pattern"),
        ({"settings": {"metrics": ":80\n"}}, "/settings/metrics'"),
        ({"settings": {"exclude": ["a,b"]}}, "/settings/exclude/0': 'a,b' does not match pattern"),
        ({"settings": {"imex-channels": [65536]}}, "/settings/imex-channels/0': maximum: got 65,536, want 65,535"),
        ({"settings": {"gds": "yes"}}, "/settings/gds': got string, want null or boolean"),
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
        ({"nvidiaDriverRoot": "/run/nvidia/driver"}, 'nvidiaDriverRoot is "/run/nvidia/driver", .* write root under'),
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
    kept = ("image", "kubeletDir", "runtimeClassName")
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


# Of each container: its user, whether it is privileged, and what of the node it sees, with ! where it may write.
SECURITY = {
    "gpushim-node install": (None, True, {"!/host=/"}),
    "gpushim-node keep": (None, True, {"!/host=/"}),
    "gpushim-uninstall uninstall": (None, True, {"!/host=/"}),
    "gpushim-uninstall done": (65532, False, set()),
    "gpushim-device-plugin profile": (65532, False, set()),
    "gpushim-device-plugin cluster": (65532, False, set()),
    "gpushim-device-plugin device-plugin": (
        0,
        False,
        {
            "!/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources=/var/lib/kubelet/pod-resources",
            "!/run/gpushim=/run/gpushim",
            "/etc/gpushim=/etc/gpushim",
            "/etc/cdi=/etc/cdi",
            "/var/run/cdi=/var/run/cdi",
        },
    ),
}
DROPPED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def daemon_sets() -> Iterator[dict[str, Any]]:
    for values in (ALL, {"uninstall": True}):
        yield from (each for each in charts.objects(values).values() if each["kind"] == "DaemonSet")


def test_what_containers_may() -> None:
    found = {}
    for each in daemon_sets():
        pod = each["spec"]["template"]["spec"]
        places = {row["name"]: row["hostPath"]["path"] for row in pod["volumes"] if "hostPath" in row}
        for name, container in containers(each).items():
            rights = dict(container["securityContext"])
            mounts = [row for row in container.get("volumeMounts", ()) if row["name"] in places]
            seen = {f"{'!' * (not row.get('readOnly'))}{row['mountPath']}={places[row['name']]}" for row in mounts}
            user, privileged = rights.pop("runAsUser", None), rights.pop("privileged", False)
            nobody = {"runAsNonRoot": True, "runAsGroup": user} if user else {}
            assert rights == ({"readOnlyRootFilesystem": True} if privileged else {**DROPPED, **nobody}), name
            found[f"{each['metadata']['name']} {name}"] = (user, privileged, seen)
    assert found == SECURITY


def test_the_token_is_where_the_api_server_is_asked() -> None:
    with_token = set()
    for each in daemon_sets():
        pod = each["spec"]["template"]["spec"]
        assert (pod["automountServiceAccountToken"], pod.get("hostNetwork"), pod.get("hostIPC")) == (
            False,
            None,
            None,
        )
        assert pod.get("hostPID", False) == (each["metadata"]["name"] != "gpushim-device-plugin")
        tokens = {row["name"] for row in pod["volumes"] if "serviceAccountToken" in str(row)}
        for name, container in containers(each).items():
            with_token |= {name for row in container.get("volumeMounts", ()) if row["name"] in tokens}
    assert with_token == {"profile", "cluster"}


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
            "podSecurityContext": {"seLinuxOptions": {"type": "container_device_plugin_t"}},
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
    *(("create", "nodefeatures", True), ("patch", "nodefeatures", True), ("delete", "nodefeatures", False)),
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


def test_the_api_server_would_say_what_is_wrong(server: Api) -> None:
    rendered = charts.objects({})
    rendered[PLUGIN]["spec"]["template"]["spec"]["hostPid"] = True
    done = server.kubectl(
        "apply", "--dry-run=server", "--validate=true", "--filename=-", objects=[*rendered.values()]
    )
    assert done.returncode
    assert "hostPid" in done.stderr
