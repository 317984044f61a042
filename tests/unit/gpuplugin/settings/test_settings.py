"""Settings: what counts before what, and NVIDIA's ways to say them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.settings import settings
from gpushim.config import policy
from gpushim.ground.errors import CONFIG, GpushimError
from gpushim.nvidia.migrate.device_plugin_keys import SETTINGS


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
        ({}, {"GDS_ENABLED": "T"}, {}, "gds", True),
        ({}, {"FAIL_ON_INIT_ERROR": "F"}, {}, "fail-on-init-error", False),
        ({}, {"IMEX_CHANNEL_IDS": "[0]"}, {}, "imex-channels", [0]),
        ({}, {}, {"imex": {"channelIDs": [0], "required": True}}, "imex-channels", [0]),
        ({"exclude": ["0,1:0"]}, {}, {}, "exclude", ["0", "1:0"]),
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
        ({"mig-strategy": ["both"]}, {}, "--mig-strategy is 'both', not one of none, single, mixed"),
        ({"device-list-strategy": ["env"]}, {}, r"--device-list-strategy\[0\] is 'env', not one of envvar, volume-m"),
        ({"device-list-strategy": [""]}, {}, "--device-list-strategy is empty"),
        ({"gds-enabled": ["yes"]}, {}, '--gds-enabled is "yes"; write true or false'),
        ({"imex-channel-ids": ["all"]}, {}, '"all"; write numbers'),
        ({"imex-channel-ids": ["65536"]}, {}, r"--imex-channel-ids\[0\] is 65536, not between 0 and 65535"),
        ({"kubelet-socket": ["kubelet.sock"]}, {}, "absolute path of kubelet.sock in a directory device-plugins"),
        (
            {"cdi-annotation-prefix": ["x"]},
            {},
            "--cdi-annotation-prefix is 'x', which is not allowed there: How anno",
        ),
        ({}, {"version": "v2"}, 'version "v2"; only v1 is known'),
        ({}, "version: [", "config.yaml is not YAML"),
        ({}, '{"version":', "config.yaml is not valid JSON"),
        ({}, "flags: {}\nflags: {}", "has the key 'flags' twice"),
        ({}, "- 1", "is not a YAML or JSON mapping; it begins with version: v1"),
        ({}, "flags:\n  migStrategy: x", "config.yaml: flags.migStrategy is 'x', not one of"),
        ({}, {"flags": {"gdsEnabled": "yes"}}, "flags.gdsEnabled is 'yes', not true or false"),
        ({}, {"flags": {"migStrategy": 1}}, "flags.migStrategy is 1, not a string"),
        ({}, {"flags": ["migStrategy"]}, "config.yaml: flags is not a YAML or JSON mapping"),
        ({}, {"imex": {"channelIDs": ["0"]}}, r"imex.channelIDs\[0\] is '0', not an integer"),
        ({}, "a: &a [x]\n" + "b: [" + "*a, " * 2000 + "]", "aliases"),
        ({}, "a: " + "[" * 5000, "is not YAML|nested too deeply"),
        ({}, "a" * (1 << 20) + "a", "is larger than 1 MiB; that is not a configuration of a device plugin"),
    ],
)
def test_what_is_wrong(file: Any, flags: dict[str, list[str]], content: Any, why: str) -> None:
    with pytest.raises(GpushimError, match=why) as told:
        values(flags, path=file(content))
    assert told.value.exit_code == CONFIG


def test_what_is_overridden_is_not_looked_at(file: Any) -> None:
    assert values({"mig-strategy": ["mixed"]}, {"MIG_STRATEGY": "both"})["mig-strategy"] == "mixed"


def test_a_file_that_others_may_write_is_refused(file: Any) -> None:
    path = file({"flags": {"migStrategy": "mixed"}})
    Path(path).chmod(0o666)
    with pytest.raises(GpushimError, match=f"{path} cannot be trusted: user 0 owns it, its mode is 0666"):
        values(path=path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GpushimError, match="x cannot be read: No such file"):
        values(path=str(tmp_path / "x"))


def test_a_file_that_a_configmap_brings_is_a_link(file: Any, tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(file("version: v1\nflags: {migStrategy: mixed}\n"))
    assert values(path=str(tmp_path / "config"))["mig-strategy"] == "mixed"


@pytest.mark.parametrize("content", ["", "{}", "version: v1\nflags:\n", "flags: {migStrategy: null}"])
def test_a_file_that_says_nothing(file: Any, content: str) -> None:
    assert values(path=file(content)) == values()


def test_what_means_nothing_in_sharing_is_said_of_so_much(file: Any) -> None:
    path = file({"sharing": {f"x{number}": 1 for number in range(18)}})
    assert settings.resolve({}, {}, {}, path).notes[-2:] == [
        f"{path}: sharing.x15 is ignored",
        f"{path}: 2 more entries below sharing have no effect",
    ]


def test_what_means_nothing_is_said(file: Any) -> None:
    content = {"migStrateggy": "none", "mpsRoot": "/m", "nvidiaDriverRoot": "/", "gfd": {"oneshot": True}}
    path = file({"flags": content, "resources": {"gpus": []}, **{f"x{number}": 1 for number in range(17)}})
    found = settings.resolve({"dev-root": ["/d"]}, {}, {}, path).notes
    assert found[:3] == [
        "--dev-root is accepted without effect: dev-root under [driver] of config.toml applies",
        f"{path}: flags.mpsRoot is accepted without effect: pipes of MPS are in /run/gpushim/mps",
        f"{path}: flags.migStrateggy is ignored; is flags.migStrategy meant?",
    ]
    assert found[-2:] == [
        f"{path}: 2 more keys are ignored",
        f"{path}: resources is accepted without effect, as in NVIDIA's plugin",
    ]
    assert len(found) == 3 + 15 + 2


@pytest.mark.parametrize(("name", "value"), [("NVIDIA_CTK_PATH", "/x"), ("CONTAINER_DRIVER_ROOT", "/x")])
def test_old_variables_are_known(name: str, value: str) -> None:
    (note,) = settings.resolve({}, {name: value}, {}, "").notes
    assert note.startswith(f"{name} is accepted without effect: ")


@pytest.mark.parametrize("name", ["EXCLUDE", "DRIVER_ROOT", "KUBELET_DIR", "GDS"])
def test_variables_of_other_programs_are_none(name: str) -> None:
    assert settings.resolve({}, {name: "x"}, {}, "") == settings.resolve({}, {}, {}, "")


@pytest.mark.parametrize("way", ["disable", "enable"])
def test_what_health_checks_leave_out_is_a_variable_alone(way: str) -> None:
    found = settings.resolve({}, {f"DP_{way.upper()}_HEALTHCHECKS": "79,all"}, {})
    assert found.values[f"{way}-healthchecks"] == "79,all"
    assert values()[f"{way}-healthchecks"] == ""
    assert found.checks.checks == (way == "enable")


def test_a_word_that_is_no_health_check_is_said() -> None:
    (note,) = settings.resolve({}, {"DP_DISABLE_HEALTHCHECKS": "79,ecc"}, {}).notes
    assert note.startswith('DP_DISABLE_HEALTHCHECKS has "ecc"')


def test_the_file_may_be_named_by_flag_variable_and_config_toml(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file({"flags": {"gdsEnabled": True}})
    monkeypatch.chdir(Path(path).parent)
    assert values(section={"config-file": path})["gds"]
    assert values({}, {"CONFIG_FILE": "config.yaml"}, {"config-file": "/none"})["gds"]
    assert values({"config-file": ["config.yaml"]}, {"CONFIG_FILE": "/none"})["config-file"] == path


def test_each_key_of_config_toml_has_a_flag() -> None:
    keys = policy.schema()["properties"]["device-plugin"]["properties"].keys()
    assert {setting.key for setting in SETTINGS if setting.flags} - {""} == keys
    flags = [flag for setting in SETTINGS for flag in setting.flags]
    assert len(flags) == len(set(flags))


METRICS = (":9400", "127.0.0.1:1", "localhost:65535", "[::1]:9400", "unix:/run/gpushim/metrics.sock", "")
WRONG = ("9400", ":0", ":65536", ":09400", "1.2.3.256:80", "example.com:80", "unix:", "unix:m", "unix:/a b",
         ":9400\n", "unix:/" + 97 * "a", "http://127.0.0.1:9400")  # fmt: skip


@pytest.mark.parametrize("value", METRICS)
def test_where_metrics_may_be_served(value: str) -> None:
    assert settings.resolve({"metrics": [value]}, {}, {}).values["metrics"] == value


@pytest.mark.parametrize("value", WRONG)
def test_where_metrics_may_not_be_served(value: str) -> None:
    with pytest.raises(GpushimError, match="is not allowed there: Where /metrics") as refused:
        settings.resolve({}, {"METRICS": value}, {})
    assert refused.value.exit_code == 15
