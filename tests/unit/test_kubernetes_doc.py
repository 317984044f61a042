"""What the pages say for clusters exists: values of the chart, its objects and containers, files; and YAML parses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e import pages
from gpushim import __version__

KUBERNETES = pages.TOP / "packaging/kubernetes"
CHART = "packaging/kubernetes/chart"
NOTES = pages.TOP / CHART / "templates/NOTES.txt"
RULES = json.loads((pages.TOP / CHART / "values.schema.json").read_text())
PLAIN = [
    each
    for name in ("gpushim.yaml", "uninstall.yaml")
    for each in yaml.safe_load_all((KUBERNETES / name).read_text())
    if each
]
KINDS = {"RuntimeClass": "node.k8s.io/v1", "Pod": "v1", "ConfigMap": "v1"} | {
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "DeviceClass": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
}
TOLD = {"kubernetes": "# Kubernetes", "from-nvidia": "## Its chart"}  # where values are told, and from which heading
# A value's place as pages write it: `node.restart`, `runtimeClass.create=false`.
VALUE = re.compile(r"`([a-z]\w*(?:\.(?!yaml)[\w-]+)*)(?:=\w+|: [^`]*)?`")


def blocks(info: str) -> Iterator[tuple[str, pages.Block]]:
    for page in pages.PAGES:
        yield from ((page.name, block) for block in pages.blocks(page.read_text()) if block.info == info)


def lines(program: str) -> list[list[str]]:
    """The command lines of a program in blocks of `sh cluster`, and what Helm tells users, as words."""
    told = re.sub(r"{{.*?}}", "gpushim", NOTES.read_text()).splitlines()
    told = [line for line in told if re.match(r" +(kubectl|helm) ", line)]
    found = [shlex.split(line) for _, block in blocks("sh cluster") for line in block.commands]
    found += [shlex.split(line) for line in told]
    return [words for words in found if words[0] == program]


def known(place: str) -> bool:
    """Return whether the schema has a value of the chart."""
    rule = RULES
    for key in place.split("."):
        if "$ref" in rule:
            rule = RULES["definitions"][rule["$ref"].rpartition("/")[2]]
        members = rule.get("properties", {})
        if key not in members:
            return rule.get("additionalProperties") is not False
        rule = members[key]
    return True


def test_yaml_is_of_a_known_kind() -> None:
    found = [(name, each) for name, block in blocks("yaml") for each in yaml.safe_load_all(block.text)]
    assert found
    for name, each in found:
        if "kind" in each:
            assert KINDS[each["kind"]] == each["apiVersion"], name
        else:  # a file of the device plugin, or a part of one
            assert each.get("version", "v1") == "v1", name


def test_helm_is_told_what_the_chart_knows() -> None:
    ours = [words for words in lines("helm") if CHART in words]
    assert len(ours) > 3
    for words in ours:
        places = [word.partition("=")[0] for before, word in zip(words, words[1:]) if before == "--set"]
        assert [place for place in places if not known(place)] == []


@pytest.mark.parametrize("page", TOLD)
def test_values_that_are_named_exist(page: str) -> None:
    """What begins as a value of the chart does; others are Kubernetes' or NVIDIA's."""
    text = (pages.TOP / "docs" / f"{page}.md").read_text().partition(f"{TOLD[page]}\n")[2]
    text = text if TOLD[page].startswith("# ") else text.partition("\n## ")[0]
    named = [found for found in VALUE.findall(text) if found.split(".")[0] in RULES["properties"]]
    assert [place for place in named if not known(place)] == []
    assert len(named) > 5


def names(each: dict[str, Any]) -> set[str]:
    pod = each.get("spec", {}).get("template", {}).get("spec", {})
    return {found["name"] for found in (*pod.get("initContainers", ()), *pod.get("containers", ()))}


def test_kubectl_is_told_what_there_is() -> None:
    objects = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in PLAIN}
    objects.add("daemonset/gpushim-dra-driver")  # of dra.enabled, which the plain file has not
    containers = {name for each in PLAIN for name in names(each)}
    assert len(lines("kubectl")) > 5
    for words in lines("kubectl"):
        for word in words:
            if "/" in word and word.startswith("daemonset/"):
                assert word in objects, words
            elif word.startswith("packaging/"):
                assert (pages.TOP / word).is_file(), words
            elif word.startswith("--container="):
                assert word.partition("=")[2] in containers, words
            elif "custom-columns=" in word:
                assert r"nvidia\.com/" in word, "the shell takes the backslash"
        if "--namespace" in words:
            assert words[words.index("--namespace") + 1] == PLAIN[0]["metadata"]["name"], words


def test_scripts_of_a_checkout_are_there() -> None:
    found = {words[0] for _, block in blocks("sh cluster") for words in map(shlex.split, block.commands)}
    assert {name for name in found if "/" in name and not (pages.TOP / name).is_file()} == set()


def test_versions_are_this_one() -> None:
    text = "".join(page.read_text() for page in pages.PAGES)
    found = re.findall(r"gpushim[-:](\d+\.\d+\.\d+)", text)
    assert set(found) == {__version__}
