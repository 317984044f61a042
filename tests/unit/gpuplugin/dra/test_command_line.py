from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplugin.dra import command_line
from gpushim.ground.errors import GpushimError

TOP = Path(__file__).parents[4]


@pytest.mark.parametrize("module", ["cluster.dra_in_cluster", "dra.explain_file", "dra.explain_held"])
def test_what_does_not_speak_with_kubelet_needs_no_grpc(module: str) -> None:
    """Nor does --help: grpcio is large, and a node that runs the driver in a pod may not have it."""
    words = f"import sys, gpuplugin.dra.command_line, gpuplugin.{module}; print('grpc' in sys.modules)"
    path = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor"))
    done = subprocess.run(
        [sys.executable, "-c", words], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_node_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(GpushimError, match=r"^the node's name is not known; set NODE_NAME, or --node-name$"):
        CliRunner().invoke(command_line.command, ["--socket=/x"], catch_exceptions=False)
