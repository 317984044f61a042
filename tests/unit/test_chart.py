"""The chart's files without Helm: their version, and values that are told, checked, and gpushim's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpushim import __version__
from gpushim.nvidia.migrate.device_plugin_keys import load_schema

CHART = Path(__file__).parents[2] / "packaging/kubernetes/chart"
RULES = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(TEXT)
# What of [device-plugin] follows from other values, and is not below `settings`.
FOLLOWS = {"kubelet-dir", "on-demand", "config-file", "profile-file", "refresh", "labels-file", "labels-interval"} | {
    *("mig-layout-file", "labels-no-timestamp", "metrics-token-file", "taint-effect", "kubeconfig", "fronts")
}
# What is Kubernetes' own, or another chart's.
FREE = {
    "affinity",
    "updateStrategy",
    "podSecurityContext",
    "global",
    "tolerations[]",
    "env[]",
    "resources.claims[]",
} | {"networkPolicy.from[]"}
KUBERNETES = {"requests", "type", "rollingUpdate"}
SETTINGS = RULES["properties"]["settings"]["properties"]
SAMPLES: list[Any] = [
    *(
        None,
        True,
        1,
        -1,
        65535,
        65536,
        "",
        "x",
        "none",
        "single",
        "uuid",
        "packed",
        "/x",
        "a/b",
        "cdi.k8s.io/",
        "CDI/",
    ),
    *(
        "127.0.0.1:9400",
        ":9400",
        ":09400",
        ":94000",
        "[::1]:9400",
        "x:9400",
        ":80",
        "unix:/run/gpushim/m",
        "unix:/m",
    ),
    *([], ["envvar"], ["x"], ["a b"], [1], ["cdi-cri", "envvar"], ["0", "GPU-1"], ["a,b"], [70000]),
]
NOT_IN_A_POD = {":80", "unix:/m"}  # needs a capability, and a root file system that can be written


def followed(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the rule that a rule refers to, or itself."""
    found: dict[str, Any] = RULES
    for member in rule["$ref"].split("/")[1:] if "$ref" in rule else ():
        found = found[member]
    return found if "$ref" in rule else rule


def objects(rule: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """List the rules of everything that may be an object, each with its place."""
    rule = followed(rule)
    if "object" in rule.get("type", ()):
        yield place, rule
    for key, member in rule.get("properties", {}).items():
        yield from objects(member, f"{place}.{key}".lstrip("."))
    if isinstance(rule.get("items"), dict):
        yield from objects(rule["items"], f"{place}[]")


def leaves(values: dict[str, Any], place: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{place}{key}"
        if isinstance(value, dict) and key not in ("resources", "rollingUpdate"):
            yield from leaves(value, f"{place}{key}.")


def test_the_chart_has_gpushims_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_an_unknown_value_is_refused_everywhere_but_in_kubernetes_own_members() -> None:
    jsonschema.Draft7Validator.check_schema(RULES)
    free = {place for place, rule in objects(RULES) if rule.get("additionalProperties", True) is True}
    assert free <= FREE
    assert {"settings", "image", "config", "node"} <= {place for place, _ in objects(RULES)}


def test_every_value_of_the_schema_is_in_the_file_and_the_other_way_round() -> None:
    known = {f"{place}.{key}".lstrip(".") for place, rule in objects(RULES) for key in rule.get("properties", {})}
    inner = re.compile(r"(resources\.|updateStrategy\.|\[\])")
    assert {key for key in known if not inner.search(key)} == {key for key in leaves(VALUES) if not inner.search(key)}
    jsonschema.validate(VALUES, RULES)


def test_every_value_is_told_by_a_comment() -> None:
    lines = TEXT.splitlines()
    for before, line in zip(lines, lines[1:]):
        key = re.match(r" *([\w-]+):", line)
        if key and key[1] not in KUBERNETES and not line.endswith(":"):  # the members of a group are told
            assert before.lstrip().startswith("#"), line


def test_settings_are_the_keys_of_the_plugins_section() -> None:
    assert set(SETTINGS) == set(load_schema()) - FOLLOWS


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_setting_takes_nothing_that_the_plugin_refuses(key: str) -> None:
    ours = jsonschema.Draft7Validator({**SETTINGS[key], "definitions": RULES["definitions"]})
    theirs = jsonschema.Draft7Validator(load_schema()[key])
    taken = [sample for sample in SAMPLES if ours.is_valid(sample)]
    assert taken[0] is None
    wanted = [sample for sample in SAMPLES[1:] if theirs.is_valid(sample)]
    assert taken[1:] == (wanted if key != "metrics" else [row for row in wanted if row not in NOT_IN_A_POD])
