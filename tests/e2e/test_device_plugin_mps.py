"""MPS under a real kubelet: the supervisor by hand, as there is no systemd here, and a client in a pod.

The daemon is the simulated host's, which is strict about what it is told; its protocol is lines. What a supervisor
does by itself is in unit/gpuplugin/mps/test_supervisor.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.engines import SYSTEM_PATH, run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.mpsclient import CLIENT
from e2e.plugins import SECONDS, Plugin, plugin
from e2e.supervisor import Supervisor, writable
from fakehost import Host

SLICE, WHOLE, GROUP = "nvidia.com/gpu.half", "nvidia.com/gpu", "gpu.half"
ROWS = [{"name": "gpu", "devices": [0, 1], "replicas": 2, "rename": "gpu.half"}]
# Of one name: two groups, of other sizes, and a GPU that is whole.
TWO = [{"name": "gpu", "devices": [0], "replicas": 2}, {"name": "gpu", "devices": [1], "replicas": 4}]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("mps") / "root"
    return fakehost.build(str(root), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def env(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings with the group."""
    file = tmp_path_factory.mktemp("sharing") / "sharing.json"
    file.write_text(json.dumps({"version": "v1", "sharing": {"mps": {"resources": ROWS}}}))
    return {**env, "CONFIG_FILE": str(file)}


@pytest.fixture(scope="module")
def node(node: Node, host: Host) -> Node:
    writable(node, host.root)
    return node


@pytest.fixture
def supervisor(node: Node, env: dict[str, str]) -> Iterator[Supervisor]:
    found = Supervisor(node, env, GROUP)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def running(node: Node, env: dict[str, str], supervisor: Supervisor) -> Iterator[Plugin]:
    with plugin(node, env) as found:
        yield found


def look(node: Node, name: str, **more: Any) -> dict[str, Any]:
    """Let a pod that has a part of a GPU tell what a client in it sees."""
    pod = node.pod(name, {SLICE: 1}, **more)
    assert pod.container, pod
    found: dict[str, Any] = json.loads(node.run(pod.container, ["python3", "-c", CLIENT]))
    return found


def test_a_client_reaches_its_daemon_and_nothing_else(node: Node, running: Plugin, supervisor: Supervisor) -> None:
    running.offers(SLICE)
    running.offers(WHOLE)
    assert len(node.allocatable(SLICE)) == 4
    assert len(node.allocatable(WHOLE)) == 1
    lacks = "the driver keeps no limit of GPU memory: "
    assert until(lambda: lacks in running.said(), SECONDS), running.said()
    command = [str(trees.TOP / "bin" / "gpushim"), "device-plugin", "status", "--format=json"]
    status = json.loads(run(command, env={"PATH": SYSTEM_PATH, **running.env}).stdout)
    assert any(lacks in note for note in status["notes"])
    own = Path("/dev/shm/of the host")
    own.touch()
    try:
        seen = look(node, "client")
        other = look(node, "user", securityContext={"runAsUser": 1000, "runAsGroup": 1000})
    finally:
        own.unlink()
    begins = Path(supervisor.place.log, "control.log").read_text().splitlines()[0]
    assert begins == f"begins shm={seen['shm']} gpus=2"
    assert (seen["there"], sorted(other["there"])) == (["of 0"], ["of 0", "of 1000"])
    assert "size=" in seen["options"]  # runc drops nosuid, nodev and noexec of what kubelet has it mount
    assert (seen["pipes"], seen["variables"]) == (f"/run/gpushim/mps/{GROUP}/pipe", ["CUDA_MPS_PIPE_DIRECTORY"])
    assert (seen["threads"], seen["memory"]) == ("50.0", "20480M")
    assert seen["tries"] == ["EROFS"] * 4
    assert {key: other[key] for key in ("shm", "threads", "tries")} == {
        key: seen[key] for key in ("shm", "threads", "tries")
    }


def test_a_daemon_that_ends_takes_its_devices_along(node: Node, running: Plugin, supervisor: Supervisor) -> None:
    """And they come back with it."""
    running.offers(SLICE)
    supervisor.kill("KILL", supervisor.daemon())
    assert supervisor.process is not None
    assert supervisor.process.wait(SECONDS) == 12
    assert until(lambda: not node.allocatable(SLICE), SECONDS), running.said()
    assert until(lambda: f"systemctl start gpushim-mps@{GROUP}.service" in running.said(), SECONDS), running.said()
    supervisor.start()
    assert until(lambda: len(node.allocatable(SLICE)) == 4, SECONDS), running.said()


@pytest.fixture
def two(node: Node, env: dict[str, str], tmp_path: Path) -> Iterator[Plugin]:
    """The plugin, with two groups of one name that serve."""
    sharing = {"mps": {"failRequestsGreaterThanOne": False, "resources": TWO}}
    (tmp_path / "two.json").write_text(json.dumps({"version": "v1", "sharing": sharing}))
    node.remove()
    env = {**env, "CONFIG_FILE": str(tmp_path / "two.json")}
    daemons = [Supervisor(node, env, group) for group in ("gpu", "gpu-2")]
    try:
        for one in daemons:
            one.start()
        with plugin(node, env) as found:
            yield found
    finally:
        for one in daemons:
            one.stop()


def test_no_pod_is_refused_while_one_daemon_has_room(node: Node, two: Plugin, host: Host) -> None:
    """Kubelet alone would take devices of two daemons, of which Allocate refuses every one, and so on in a loop."""
    assert until(lambda: len(node.allocatable(WHOLE)) == 7, SECONDS), two.said()
    for number, size in enumerate((2, 1, 2, 1, 1)):
        pod = node.pod(f"asks{number}", {WHOLE: size})
        assert pod.container, pod
        held = node.held(f"asks{number}")[WHOLE]
        assert len({one.partition("::")[0] for one in held}) == 1
    assert {host.gpus[2].uuid} < {one for ids in node.everybody().values() for one in ids[WHOLE]}
