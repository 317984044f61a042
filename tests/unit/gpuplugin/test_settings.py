"""Settings: what counts before what, and NVIDIA's ways to say them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin import settings
from gpuplugin.cli import spelled
from gpushim.errors import GpushimError


def values(
    flags: dict[str, list[str]] | None = None,
    environment: dict[str, str] | None = None,
    section: Any = None,
    path: str = "",
) -> dict[str, Any]:
    return settings.resolve(flags or {}, environment or {}, section or {}, path).values


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """Write a file of NVIDIA's."""

    def write(content: Any) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_a_flag_counts_before_a_variable_before_the_file_before_config_toml(file: Any) -> None:
    path = file("version: v1\nflags:\n  migStrategy: mixed\n  plugin:\n    deviceIDStrategy: index\n")
    section = {"mig-strategy": "none", "device-id-strategy": "uuid", "gds": True}
    assert values(section=section)["mig-strategy"] == "none"
    assert values(section=section, path=path)["mig-strategy"] == "mixed"
    assert values({}, {"MIG_STRATEGY": "single"}, section, path)["mig-strategy"] == "single"
    found = values({"mig-strategy": ["none"]}, {"MIG_STRATEGY": "single"}, section, path)
    assert (found["mig-strategy"], found["device-id-strategy"], found["gds"]) == ("none", "index", True)
    assert found["allocation-policy"] == "distributed"


@pytest.mark.parametrize(
    ("flags", "environment", "content", "key", "wanted"),
    [
        ({"device-list-strategy": ["envvar,cdi-cri"]}, {}, {}, "device-list-strategy", ["envvar", "cdi-cri"]),
        ({"device-list-strategy": ["envvar", "cdi-cri"]}, {}, {}, "device-list-strategy", ["envvar", "cdi-cri"]),
        ({}, {"DEVICE_LIST_STRATEGY": "volume-mounts"}, {}, "device-list-strategy", ["volume-mounts"]),
        ({}, {}, {"flags": {"plugin": {"deviceListStrategy": "cdi-cri"}}}, "device-list-strategy", ["cdi-cri"]),
        ({}, {}, {"flags": {"plugin": {"deviceListStrategy": ["cdi-cri"]}}}, "device-list-strategy", ["cdi-cri"]),
        ({}, {"FAIL_ON_INIT_ERROR": "false"}, {}, "fail-on-init-error", False),
        ({}, {}, {"flags": {"failOnInitError": False}}, "fail-on-init-error", False),
        ({}, {"FAIL_ON_INIT_ERROR": ""}, {}, "fail-on-init-error", True),
        ({}, {"IMEX_CHANNEL_IDS": "[0]"}, {}, "imex-channels", [0]),
        ({}, {}, {"imex": {"channelIDs": [0], "required": True}}, "imex-channels", [0]),
        ({"exclude": ["0,GPU-1"]}, {}, {}, "exclude", ["0", "GPU-1"]),
        ({"kubelet-socket": ["/k/device-plugins/kubelet.sock"]}, {}, {}, "kubelet-dir", "/k"),
    ],
)
def test_ways_to_say_it(
    file: Any, flags: dict[str, list[str]], environment: dict[str, str], content: Any, key: str, wanted: Any
) -> None:
    assert values(flags, environment, path=file(content))[key] == wanted


@pytest.mark.parametrize(
    ("flags", "content", "why"),
    [
        ({"mig-strategy": ["both"]}, {}, r'--mig-strategy is "both"; it may be none, single, mixed'),
        ({"device-list-strategy": ["env"]}, {}, r'"env"; it may be envvar, volume-mounts, cdi-annotations, cdi-cri'),
        ({"gds-enabled": ["yes"]}, {}, r'--gds-enabled is "yes"; write true or false'),
        ({"imex-channel-ids": ["all"]}, {}, r'"all"; write numbers'),
        ({}, {"version": "v2"}, r'version "v2"; only v1 is known'),
        ({}, "version: [", "neither YAML nor JSON"),
        ({}, "- 1", "is not a mapping; it begins with version: v1"),
        ({}, {"flags": {"migStrategy": "x"}}, r'config.yaml: flags.migStrategy is "x"'),
        ({}, {"sharing": {"timeSlicing": {"resources": [{"name": "gpu"}]}}}, "no replicas above 0"),
        ({}, {"sharing": []}, "sharing is not a mapping"),
    ],
)
def test_what_is_wrong(file: Any, flags: dict[str, list[str]], content: Any, why: str) -> None:
    if content == {"sharing": []}:
        content = {"sharing": ["x"]}
    with pytest.raises(GpushimError, match=why):
        values(flags, path=file(content))


def test_what_means_nothing_is_said(file: Any) -> None:
    path = file(
        {"flags": {"migStrateggy": "none", "mpsRoot": "/m", "gfd": {"oneshot": True}}, "resources": {"gpus": []}}
    )
    notes = settings.resolve({"driver-root": ["/d"]}, {}, {}, path).notes
    assert notes == [
        f"{path}: flags.migStrateggy means nothing; is flags.migStrategy meant?",
        f"{path}: resources is read and does nothing, as in NVIDIA's plugin",
        "--nvidia-driver-root is read and does nothing: root under [driver] of config.toml counts",
        "--mps-root is read and does nothing: MPS is not offered",
    ]


def test_replicas(file: Any) -> None:
    rows = [{"name": "nvidia.com/gpu", "replicas": 4}, {"name": "mig-1g.5gb", "replicas": 2}]
    path = file({"sharing": {"timeSlicing": {"renameByDefault": True, "resources": rows}}})
    found = settings.resolve({}, {}, {}, path)
    assert found.replicas == {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.5gb": 2}
    assert (found.renamed, found.single) == (True, False)


def test_flags_as_a_go_program_takes_them() -> None:
    words = ["-mig-strategy=single", "--pass-device-specs", "--gds-enabled=false", "-mofed-enabled", "x", "-h", "--"]
    assert spelled(words) == [
        "--mig-strategy=single", "--pass-device-specs=true", "--gds-enabled=false", "--mofed-enabled=true",
        "x", "-h", "--",
    ]  # fmt: skip
