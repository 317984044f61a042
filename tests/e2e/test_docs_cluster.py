"""Helm takes what the pages tell it: their values, and the --set of their commands."""

from __future__ import annotations

import pytest
import yaml

from e2e import charts, pages
from e2e.cluster_lines import told
from e2e.helm import Values

FOUND = [block for page in pages.PAGES for block in pages.blocks(page.read_text())]
FILES = [yaml.safe_load(block.text) for block in FOUND if block.info == "yaml values"]
LINES = [line for block in FOUND if block.info == "sh cluster" for line in block.commands]
OURS = [line for line in LINES if line.startswith("helm ") and "kubernetes/chart" in line and "--set" in line]


@pytest.mark.parametrize("values", [*FILES, *map(told, OURS)], ids=str)
def test_the_chart_takes_it(values: Values) -> None:
    found = charts.objects(values)
    (name,) = {charts.PLUGIN, "DaemonSet gpushim-uninstall"} & found.keys()
    selector = found[name]["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"kubernetes.io/os": "linux", **values.get("nodeSelector", {})}
    made = values.get("runtimeClass", {}).get("create", True) and not values.get("uninstall", False)
    assert ("RuntimeClass nvidia" in found) == made
