"""The settings of NVIDIA's device plugin become [device-plugin], from its file or from its pod's manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.ground.errors import CONFIG, FAILED, GpushimError
from gpushim.nvidia.migrate import migrate, migrate_plugin

CONFIGURATION = """\
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  nvidiaDriverRoot: /run/nvidia/driver
  mpsRoot: /run/mps
  gfd: {oneshot: true, sleepInterval: 2m}
  plugin:
    deviceListStrategy: [envvar, cdi-cri]
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    typo: 1
resources: {gpus: []}
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}
"""
MANIFEST = """\
apiVersion: v1
kind: ConfigMap
---
apiVersion: apps/v1
kind: DaemonSet
spec:
  template:
    spec:
      containers:
      - {name: sidecar, image: "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", command: [config-manager]}
      - name: nvidia-device-plugin-ctr
        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0
        args: [-mig-strategy=single, --pass-device-specs, --device-list-strategy, envvar,
               --device-list-strategy=cdi-cri, --x=1]
        env:
        - {name: MIG_STRATEGY, value: mixed}
        - {name: FAIL_ON_INIT_ERROR, value: "false"}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: GDS_ENABLED, valueFrom: {configMapKeyRef: {name: x, key: y}}}
        - {name: CONFIG_FILE, value: /config/config.yaml}
"""


@pytest.fixture
def become(tmp_path: Path) -> Any:
    """Say what each setting of a file becomes, by its key."""

    def said(content: str) -> dict[str, str]:
        (tmp_path / "plugin.yaml").write_text(content)
        return {row.key: row.becomes for row in migrate_plugin.rows(str(tmp_path / "plugin.yaml"))}

    return said


def test_the_default_root_says_nothing_of_this_host(become: Any) -> None:
    assert become("flags: {nvidiaDriverRoot: /}")["flags.nvidiaDriverRoot"].startswith("not needed: root under")


def test_a_configuration(become: Any) -> None:
    found = become(CONFIGURATION)
    assert found["flags.migStrategy"] == '[device-plugin] mig-strategy = "mixed"'
    assert found["flags.failOnInitError"] == "[device-plugin] fail-on-init-error = true, the default"
    assert found["flags.nvidiaDriverRoot"] == '[driver] root = "/run/nvidia/driver"'
    assert found["flags.plugin.deviceListStrategy"] == '[device-plugin] device-list-strategy = ["envvar", "cdi-cri"]'
    assert found["flags.mpsRoot"] == "not needed: pipes of MPS are in /run/gpushim/mps"
    assert found["flags.gfd.sleepInterval"] == "[device-plugin] labels-interval = 120"
    assert found["sharing"].startswith("left out: config.toml has none; ")
    assert found["flags.plugin.typo"].startswith("left out: neither gpushim nor")
    needless = {"version", "flags.mpsRoot", "resources", "flags.gfd.oneshot", "flags.plugin.nvidiaCTKPath"}
    assert {key for key, value in found.items() if value.startswith("not needed: ")} == needless


def test_a_manifest(become: Any) -> None:
    found = become(MANIFEST)
    assert found == {
        "--mig-strategy": '[device-plugin] mig-strategy = "single"',
        "MIG_STRATEGY": "not needed: --mig-strategy counts",
        "FAIL_ON_INIT_ERROR": "[device-plugin] fail-on-init-error = false",
        "GDS_ENABLED": "left out: the manifest does not contain its value (valueFrom)",
        "--device-list-strategy": '[device-plugin] device-list-strategy = ["envvar", "cdi-cri"]',
        "--pass-device-specs": "[device-plugin] pass-device-specs = true",
        "CONFIG_FILE": "left out: its settings are in that file; gpushim migrate --device-plugin reads it",
        "--x": "left out: neither gpushim nor NVIDIA's device plugin 0.20 knows it",
    }


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["/usr/bin/nvidia-device-plugin"], "image": "elsewhere/own:1"},
        {"image": "registry.local:5000/mirror/k8s-device-plugin@sha256:0"},
        {
            "command": ["/bin/bash", "-c"],
            "image": "nvcr.io/nvidia/k8s-device-plugin:v1",
            "name": "nvidia-device-plugin",
        },
    ],
)
def test_containers_that_run_it(become: Any, container: dict[str, Any]) -> None:
    container = {**container, "env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}
    for pod in ({"kind": "Pod", "spec": {"containers": [container]}},):
        assert "MIG_STRATEGY" in become(json.dumps(pod))
        assert "MIG_STRATEGY" in become(json.dumps({"kind": "List", "items": [pod]}))


@pytest.mark.parametrize(
    ("content", "code", "why"),
    [
        (
            "kind: Pod\nspec: {containers: [{image: busybox}]}",
            FAILED,
            "no container that runs NVIDIA's device plugin",
        ),
        ("version: v2", CONFIG, 'has the version "v2"'),
        ("flags: {migStrategy: x}", CONFIG, "flags.migStrategy is 'x', not one of none, single, mixed"),
        ("flags: {nvidiaDriverRoot: here}", CONFIG, "flags.nvidiaDriverRoot is 'here', which is not allowed there"),
        ("[", FAILED, "is not YAML"),
    ],
)
def test_what_is_wrong(become: Any, content: str, code: int, why: str) -> None:
    with pytest.raises(GpushimError, match=why) as told:
        become(content)
    assert told.value.exit_code == code


def test_it_comes_into_config_toml_with_the_toolkits(tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text("flags: {migStrategy: mixed, failOnInitError: true}")
    (tmp_path / "theirs.toml").write_text("disable-require = true\n")
    rows = migrate_plugin.rows(str(tmp_path / "plugin.yaml"))
    (change,) = migrate.plan(str(tmp_path / "theirs.toml"), str(tmp_path / "config.toml"), rows).changes
    assert change.new == b'[requests]\ndisable-require = true\n\n[device-plugin]\nmig-strategy = "mixed"\n'


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="x is not there; name the device plugin's configuration"):
        migrate_plugin.rows(str(tmp_path / "x"))
