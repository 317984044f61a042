"""The NodeFeature object has the file's labels, in the form that node-feature-discovery wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster.cluster import Api, ApiError
from gpuplugin.cluster.node_feature import NodeFeature
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer

POD = {"POD_NAME": "gpushim-abc", "POD_UID": "0000-1111"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "labels"
    found.write_text("nvidia.com/gpu.count=2\n")
    return found


def feature(server: ApiServer, path: Path, pod: Any = POD) -> NodeFeature:
    return NodeFeature(Api(server.environment, str(server.account)), "node-1", str(path), pod)


def test_the_object(server: ApiServer, path: Path) -> None:
    feature(server, path).look()
    asked = server.asked[0]
    place = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpus/nodefeatures/gpushim-node-1"
    assert (asked.method, asked.path) == ("PATCH", place)
    assert asked.query == {"fieldManager": "gpushim", "force": "true"}
    assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
    assert asked.body == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": "gpushim-node-1",
            "namespace": "gpus",
            "labels": {"nfd.node.kubernetes.io/node-name": "node-1"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "gpushim-abc", "uid": "0000-1111"}],
        },
        "spec": {
            "features": {"flags": {}, "attributes": {}, "instances": {}},
            "labels": {"nvidia.com/gpu.count": "2"},
        },
    }


def test_it_is_posted_when_the_file_changes(server: ApiServer, path: Path) -> None:
    one = feature(server, path, {})
    for _ in range(2):
        one.look()
    assert len(server.asked) == 1
    path.write_text("nvidia.com/gpu.count=3\n")
    one.look()
    assert [each.body["spec"]["labels"]["nvidia.com/gpu.count"] for each in server.asked] == ["2", "3"]
    assert server.asked[0].body["metadata"]["ownerReferences"] == []


@pytest.mark.parametrize("there", [True, False])
def test_one_that_is_gone_is_posted_again_with_time(
    server: ApiServer, path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """And no other: it may be that of the next pod, which would go with this one if this one became its owner."""
    clock = [0.0]
    monkeypatch.setattr("gpuplugin.cluster.node_feature.time.monotonic", lambda: clock[0])
    server.answer = lambda request: {} if there or request.method == "PATCH" else (404, {"message": "not found"})
    one = feature(server, path)
    for clock[0] in (0, 239, 361, 362):
        one.look()
    assert [each.method for each in server.asked] == ["PATCH", "GET", *([] if there else ["PATCH"])]


def test_without_a_file_nothing_is_posted(server: ApiServer, path: Path) -> None:
    path.unlink()
    feature(server, path).look()
    assert server.asked == []


def test_lines_that_are_no_labels_are_left_out(server: ApiServer, path: Path) -> None:
    path.write_text("nvidia.com/a=1\nkubernetes.io/b=1\nnvidia.com/c=a b\nnvidia.com/d=\nx\n")
    feature(server, path).look()
    assert server.asked[0].body["spec"]["labels"] == {"nvidia.com/a": "1", "nvidia.com/d": ""}


def test_what_was_refused_is_posted_again(server: ApiServer, path: Path) -> None:
    server.answer = lambda _: (404, {"message": "the server could not find the requested resource"})
    one = feature(server, path)
    with pytest.raises(
        ApiError, match=r"404: the server could not find .*; NodeFeature objects are node-feature-disc"
    ):
        one.look()
    server.answer = lambda _: {}
    one.look()
    assert len(server.asked) == 2


def test_a_pod_whose_name_is_none(server: ApiServer, path: Path) -> None:
    with pytest.raises(GpushimError, match='POD_NAME is "a b", which is not a Kubernetes name'):
        feature(server, path, {"POD_NAME": "a b", "POD_UID": "1"})
