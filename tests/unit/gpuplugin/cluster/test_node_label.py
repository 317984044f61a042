"""The profile file says what the node's label says, whatever becomes of the watch."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster.cluster import Api, ApiError
from gpuplugin.cluster.node_label import LABEL, MIG_LABELS, NodeLabel
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer, Request


def node(profile: str | None, name: str = "node-1") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"other": "x", **({LABEL: profile} if profile else {})}}}


class Nodes:
    """What the server says: the node, and the events that tests put."""

    def __init__(self, profile: str | None) -> None:
        self.items = [node(profile)]
        self.events: queue.Queue[Any] = queue.Queue()

    def __call__(self, request: Request) -> Any:
        if "watch" in request.query:
            return iter(self.events.get, None)
        return {"metadata": {"resourceVersion": "7"}, "items": self.items}


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("small")


@pytest.fixture
def server(tmp_path: Path, nodes: Nodes) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, nodes).running() as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile"


@pytest.fixture
def label(server: ApiServer, path: Path) -> NodeLabel:
    return NodeLabel(Api(server.environment, str(server.account)), "node-1", str(path))


def test_the_label_is_written(label: NodeLabel, path: Path, server: ApiServer) -> None:
    assert label.once() == "7"
    assert path.read_text() == "small\n"
    assert server.asked[0].query["fieldSelector"] == "metadata.name=node-1"
    assert "PartialObjectMetadataList" in server.asked[0].headers["Accept"]


def test_without_a_label_the_file_is_empty(label: NodeLabel, nodes: Nodes, path: Path) -> None:
    nodes.items = [node(None)]
    label.once()
    assert path.read_bytes() == b""


def test_changes_are_followed(label: NodeLabel, nodes: Nodes, path: Path, server: ApiServer) -> None:
    for profile in ("whole", None):
        nodes.events.put({"type": "MODIFIED", "object": node(profile)})
    following = label.follow()
    found = [next(following) or path.read_text() for _ in range(3)]
    assert found == ["small\n", "whole\n", ""]
    assert server.asked[1].query["resourceVersion"] == "7"
    nodes.events.put(None)
    assert [*following] == []


def test_a_version_that_is_too_old_ends_the_watch(label: NodeLabel, nodes: Nodes) -> None:
    nodes.events.put({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    nodes.events.put(None)
    assert [*label.follow()] == [None]


def test_another_error_is_said(label: NodeLabel, nodes: Nodes) -> None:
    nodes.events.put({"type": "ERROR", "object": {"code": 500, "message": "broken\n"}})
    nodes.events.put(None)
    with pytest.raises(ApiError, match=r"ends the watch of node node-1: broken"):
        [*label.follow()]


@pytest.mark.parametrize(
    "event", [{"type": "BOOKMARK", "object": {"metadata": {}}}, [], {"type": "ADDED"}, {"type": []}]
)
def test_events_that_say_nothing(label: NodeLabel, nodes: Nodes, path: Path, event: Any) -> None:
    nodes.events.put(event)
    nodes.events.put(None)
    assert [*label.follow()] == [None, None]
    assert path.read_text() == "small\n"


def test_a_value_that_is_no_name_is_refused(
    label: NodeLabel, nodes: Nodes, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    label.once()
    nodes.items = [node("../../etc\n")]
    label.once()
    label.once()
    assert path.read_text() == "small\n"
    assert [one for one in caplog.messages if "not a valid name" in one] == [
        f'the label {LABEL} is "../../etc\\n", which is not a valid name'
    ]


def test_other_nodes_do_not_count(label: NodeLabel, nodes: Nodes, path: Path) -> None:
    nodes.events.put({"type": "MODIFIED", "object": node("whole", "node-2")})
    nodes.events.put(None)
    [*label.follow()]
    assert path.read_text() == "small\n"


def test_a_node_that_nobody_knows(label: NodeLabel, nodes: Nodes) -> None:
    nodes.items = []
    with pytest.raises(ApiError, match=r"knows no node node-1; set NODE_NAME to spec.nodeName"):
        label.once()


def test_a_file_that_cannot_be_written(label: NodeLabel, path: Path) -> None:
    path.mkdir()
    with pytest.raises(GpushimError, match=f"{path} cannot be written: Is a directory"):
        label.once()


def test_of_two_labels_the_first_that_is_there_counts(server: ApiServer, nodes: Nodes, path: Path) -> None:
    label = NodeLabel(Api(server.environment, str(server.account)), "node-1", str(path), MIG_LABELS)
    written = []
    for labels in ({}, {MIG_LABELS[1]: "night"}, dict(zip(MIG_LABELS, ("day", "night"))), {}):
        nodes.items = [{"metadata": {"name": "node-1", "labels": {LABEL: "small", **labels}}}]
        label.once()
        written.append(path.read_text())
    assert written == ["", "night\n", "day\n", ""]
