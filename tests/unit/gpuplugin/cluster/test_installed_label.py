"""The label of a node follows the file that says whether gpushim is installed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster.cluster import Api, ApiError
from gpuplugin.cluster.installed_label import InstalledLabel
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer

LABEL = "gpushim/installed"
AWAY = (503, {"message": "not now"})


def label(server: ApiServer, tmp_path: Path, installed: str = "installed") -> InstalledLabel:
    api = Api(server.environment, str(server.account))
    path = str(tmp_path / installed) if installed else ""
    return InstalledLabel(api, "node-1", LABEL, path, str(tmp_path / "told"))


def said(server: ApiServer) -> list[Any]:
    return [each.body["metadata"]["labels"][LABEL] for each in server.asked]


def test_what_is_asked(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "installed").touch()
    label(server, tmp_path).look()
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.query) == (
        *("PATCH", "/api/v1/nodes/node-1"),
        {"fieldManager": "gpushim-node"},
    )
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.body == {"metadata": {"labels": {LABEL: "true"}}}
    assert "PartialObjectMetadata" in asked.headers["Accept"]


def test_it_comes_and_goes_with_the_file(server: ApiServer, tmp_path: Path) -> None:
    one, told = label(server, tmp_path), tmp_path / "told"
    for _ in range(2):
        one.look()
    assert said(server) == [None]  # of the machine that had this name before
    assert told.exists()
    (tmp_path / "installed").touch()
    for _ in range(2):
        one.look()
    assert said(server) == [None, "true"]


def test_one_that_somebody_removed_comes_back(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("gpuplugin.cluster.installed_label.time.monotonic", lambda: clock[0])
    (tmp_path / "installed").touch()
    one = label(server, tmp_path)
    for clock[0] in (0, 239, 361, 362):
        one.look()
    assert said(server) == ["true", "true"]


@pytest.mark.parametrize("there", [True, False])
def test_an_api_server_that_is_away_is_asked_again(server: ApiServer, tmp_path: Path, there: bool) -> None:
    """And nobody is told before that it knows."""
    if there:
        (tmp_path / "installed").touch()
    one = label(server, tmp_path)
    server.answer = lambda _: AWAY
    for _ in range(2):
        with pytest.raises(ApiError, match="503: not now"):
            one.look()
    assert not (tmp_path / "told").exists()
    server.answer = lambda _: {}
    one.look()
    assert (tmp_path / "told").exists()
    assert len(server.asked) == 3


def test_a_node_that_the_api_server_does_not_know(server: ApiServer, tmp_path: Path) -> None:
    """Has no label to take away; one to give it waits for."""
    server.answer = lambda _: (404, {"message": 'nodes "node-1" not found'})
    label(server, tmp_path, "").look()
    (tmp_path / "installed").touch()
    with pytest.raises(ApiError, match="404"):
        label(server, tmp_path).look()


def test_nobody_can_be_told(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "told").mkdir()
    with pytest.raises(GpushimError, match="told cannot be written: Is a directory"):
        label(server, tmp_path).look()
