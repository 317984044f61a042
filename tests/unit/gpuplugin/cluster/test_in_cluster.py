"""--cluster as a process: it follows the label, posts labels, and outlives an API server that is away."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster import in_cluster
from gpuplugin.cluster.node_label import LABEL
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer, Request
from waiting import until

TOP = Path(__file__).parents[4]
PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[3:5]; from gpuplugin import cli; from gpuplugin.cluster import in_cluster; "
)
PROGRAM += 'in_cluster.run.__defaults__ = ("", "", sys.argv[1]); sys.argv[:5] = [\'x\']; cli.main()'


class Cluster:
    """What the API server has: the node's label, and the objects that were posted."""

    def __init__(self) -> None:
        self.profile, self.events, self.posted = "small", queue.Queue[Any](), list[Any]()
        self.well = True

    def __call__(self, request: Request) -> Any:
        if not self.well:
            return 503, {"message": "not now"}
        if request.method == "PATCH":
            self.posted.append(request.body)
            return {}
        if "watch" in request.query:
            return iter(self.events.get, None)
        return {"metadata": {"resourceVersion": "1"}, "items": [self.node()]}

    def node(self) -> dict[str, Any]:
        return {"metadata": {"name": "node-1", "labels": {LABEL: self.profile}}}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    found.events.put(None)


@pytest.fixture
def server(tmp_path: Path, cluster: Cluster) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, cluster).running() as found:
        yield found


@contextlib.contextmanager
def process(server: ApiServer, *words: str) -> Iterator[subprocess.Popen[str]]:
    paths = [str(server.account), "", str(TOP / "plugin"), str(TOP / "shim")]
    started = subprocess.Popen(
        [sys.executable, "-B", "-c", PROGRAM, *paths, "--cluster", *words],
        stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"], **server.environment},
    )  # fmt: skip
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stderr
        started.stderr.close()


def text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return "none"


def test_once(server: ApiServer, cluster: Cluster, tmp_path: Path) -> None:
    path, labels = tmp_path / "profile", tmp_path / "labels"
    labels.write_text("nvidia.com/gpu.count=2\n")
    with process(server, f"--profile-file={path}", "--node-feature", f"--labels-file={labels}", "--once") as started:
        assert started.wait(20) == 0
    assert (path.read_text(), cluster.posted) == ("small\n", [])


def test_label_and_labels(server: ApiServer, cluster: Cluster, tmp_path: Path) -> None:
    profile, labels = tmp_path / "profile", tmp_path / "labels"
    with process(server, f"--profile-file={profile}", "--node-feature", f"--labels-file={labels}") as started:
        until(lambda: text(profile) == "small\n")
        cluster.profile = "whole"
        cluster.events.put({"type": "MODIFIED", "object": cluster.node()})
        until(lambda: text(profile) == "whole\n", 2)
        labels.write_text("nvidia.com/gpu.count=2\n")
        until(lambda: cluster.posted)
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == 0


def test_a_server_that_is_away_is_waited_for(server: ApiServer, cluster: Cluster, tmp_path: Path) -> None:
    cluster.well, path = False, tmp_path / "profile"
    with process(server, f"--profile-file={path}") as started:
        until(lambda: len(server.asked) > 1)
        cluster.well = True
        until(lambda: text(path) == "small\n")
        started.terminate()
        assert started.wait(10) == 0
        assert started.stderr
        assert started.stderr.read().count("the API server answers 503: not now; retrying") == 1


def test_nothing_to_do(server: ApiServer) -> None:
    with pytest.raises(GpushimError, match="--cluster has nothing to do; say --socket, --profile-file, --mig-"):
        in_cluster.run(server.environment, "", "", False, "", "", str(server.account))


def test_neither_grpc_nor_gpus_are_needed() -> None:
    line = (
        "import sys; import gpuplugin.cli, gpuplugin.cluster.in_cluster; print({'grpc', 'pynvml'} & {*sys.modules})"
    )
    env = {"PYTHONPATH": f"{TOP}/plugin:{TOP}/shim"}
    done = subprocess.run([sys.executable, "-B", "-c", line], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "set()\n"
