"""Nodes that have begun at once do not ask the API server at once for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster.cluster import Api
from gpuplugin.cluster.installed_label import InstalledLabel
from gpuplugin.cluster.node_feature import NodeFeature
from unit.gpuplugin.cluster.apiserver import ApiServer

NODES = 40
ABOUT = 300.0  # seconds after which each asks again, on average


@pytest.mark.parametrize("work", [NodeFeature, InstalledLabel])
def test_nodes_do_not_stay_together(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: type
) -> None:
    clock = [0.0]
    monkeypatch.setattr(f"{work.__module__}.time.monotonic", lambda: clock[0])
    (file := tmp_path / "file").write_text("nvidia.com/gpu.count=2\n")
    api = Api(server.environment, str(server.account))
    more: tuple[Any, ...] = {NodeFeature: (str(file), {}), InstalledLabel: ("x/y", str(file), "")}[work]
    nodes = [work(api, f"node-{number}", *more) for number in range(NODES)]
    asked = []
    for clock[0] in (0.0, ABOUT, 2 * ABOUT):
        before = len(server.asked)
        for one in nodes:
            one.look()
        asked.append(len(server.asked) - before)
    assert asked[0] == NODES
    assert 0 < asked[1] < NODES
