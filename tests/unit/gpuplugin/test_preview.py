"""What a container gets, as --explain says it without a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin import preview
from gpuplugin.allocation import cdi
from gpuplugin.mps import mps
from gpuplugin.settings import settings, sharing
from gpushim.cdi import specs
from gpushim.explain import explain as story
from gpushim.inventory import renew
from gpushim.refresh import plugin_socket
from unit.gpuplugin.snapshots import gpu, snapshot
from unit.gpushim.doctor.nodes import answering


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a client of MPS gets, by device-list-strategy."""
    monkeypatch.setattr(mps, "unready_reason", lambda state_dir, group: "")
    monkeypatch.setattr(cdi, "check", lambda host, names: None)
    monkeypatch.setattr(renew, "snapshot", lambda config, state: snapshot([gpu(0)]))
    monkeypatch.setattr(specs, "find", lambda names, folders: [("/x.json",) for _ in names])
    monkeypatch.setattr(story, "explain", lambda *words: {"refusal": None})

    def report(way: str) -> dict[str, Any]:
        said = settings.resolve({}, {}, {"device-list-strategy": [way]}, "")
        said.sharing = sharing.read({"mps": {"resources": [{"name": "gpu", "replicas": 4}]}}, "f", [])
        return preview.build_report(["gpu=1"], said)

    return report


def test_a_client_of_mps_has_its_daemon(client: Any) -> None:
    found = client("envvar")
    limits = "10240 MiB and 25 % of the threads for a process"
    (shared,) = found["answers"][0]["shared"]
    assert shared.startswith(f"0 by MPS (gpushim-mps@gpu.service), {limits}, 4 of each")
    assert found["merged"]["envs"]["CUDA_MPS_PIPE_DIRECTORY"] == "/run/gpushim/mps/gpu/pipe"


@pytest.mark.parametrize(("way", "by_us"), [("envvar", True), ("cdi-cri", False), ("cdi-annotations", True)])
def test_what_mps_adds_is_no_request_to_the_runtime(client: Any, way: str, by_us: bool) -> None:
    assert (client(way)["container"] is not None) == by_us


@pytest.mark.parametrize(("fronts", "by_claims"), [(["dra"], True), (["device-plugin", "dra"], False)])
def test_a_node_that_goes_by_claims_says_so(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fronts: list[str], by_claims: bool
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    assert preview.BY_CLAIMS not in client("envvar")["notes"]
    with answering(tmp_path / plugin_socket.SOCKET, json.dumps({"fronts": fronts}).encode() + b"\n"):
        assert (preview.BY_CLAIMS in client("envvar")["notes"]) == by_claims
