"""`gpushim-node label` as a process: it labels its node, takes that back, and outlives an API server that is away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.gpuplugin.cluster.apiserver import ApiServer
from waiting import until

TOP = Path(__file__).parents[4]
PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[2:5]; from gpuplugin.cluster import cluster; "
    "cluster.Api.__init__.__defaults__ = (sys.argv[1], None); "
    "from gpuplugin.node import main; sys.argv[:5] = ['x']; main.main(prog_name=main.PROGRAM)"
)
NAME = "--name=gpushim/installed"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, lambda _: {}).running() as found:
        yield found


@contextlib.contextmanager
def process(server: ApiServer, *words: str, node: str = "node-1") -> Iterator[subprocess.Popen[str]]:
    paths = [str(server.account), *(str(TOP / name) for name in ("plugin", "shim", "vendor"))]
    env = {"PATH": os.environ["PATH"], **server.environment, "NODE_NAME": node}
    started = subprocess.Popen(
        [sys.executable, "-B", "-c", PROGRAM, *paths, "label", NAME, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stderr
        started.stderr.close()


def said(server: ApiServer) -> list[Any]:
    return [each.body["metadata"]["labels"]["gpushim/installed"] for each in server.asked]


def test_it_labels_when_the_file_comes_and_ends_by_a_signal(server: ApiServer, tmp_path: Path) -> None:
    installed, told = tmp_path / "installed", tmp_path / "told"
    with process(server, f"--installed-file={installed}", f"--posted-file={told}") as started:
        until(told.exists)
        installed.touch()
        until(lambda: said(server) == [None, "true"])
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == 0


def test_it_removes_the_label_and_ends(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "installed").touch()
    with process(server, "--remove", f"--installed-file={tmp_path}/installed") as started:
        assert started.wait(20) == 0
    assert said(server) == [None]


def test_a_server_that_is_away_is_waited_for(server: ApiServer, tmp_path: Path) -> None:
    server.answer = lambda _: (503, {"message": "not now"})
    with process(server, "--remove") as started:
        until(lambda: len(server.asked) > 1)
        server.answer = lambda _: {}
        assert started.wait(20) == 0
        assert started.stderr
        assert started.stderr.read().count("the API server answers 503: not now; retrying") == 1


def test_a_node_without_a_name(server: ApiServer) -> None:
    with process(server, node="") as started:
        assert started.wait(20) == 1
        assert started.stderr
        assert 'NODE_NAME is "", which is not a Kubernetes name; set it by' in started.stderr.read()


@pytest.mark.parametrize("word", ["--installed-file=x", "--posted-file=x"])
def test_a_relative_path_is_refused(server: ApiServer, word: str) -> None:
    with process(server, word) as started:
        assert started.wait(20) == 2
        assert started.stderr
        assert "it is not an absolute path" in started.stderr.read()
