from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplugin.dra import command_line
from gpushim.ground.errors import GpushimError

TOP = Path(__file__).parents[4]


def test_the_half_at_the_api_server_needs_no_grpc() -> None:
    """Nor does --help: grpcio is large, and of a pod's two halves one alone speaks with kubelet."""
    words = "import sys, gpuplugin.dra.command_line, gpuplugin.cluster.dra_in_cluster; print('grpc' in sys.modules)"
    path = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor"))
    done = subprocess.run(
        [sys.executable, "-c", words], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_node_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(GpushimError, match=r"^the node's name is not known; set NODE_NAME, or --node-name$"):
        CliRunner().invoke(command_line.command, ["--socket=/x"], catch_exceptions=False)
