"""A GPU that a pod has is given out in no other way, whatever becomes of the plugin, its settings and kubelet.

Each pod's container is looked at from inside (reach.py). The tests share a node with two GPUs; one is a pod's.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.kube import Node, Pod
from e2e.leftovers import until
from e2e.plugins import Plugin, gpu_node, plugin
from e2e.reach import ENDING, Containers
from e2e.supervisor import Supervisor, writable
from fakehost import Host
from gpuplugin.record.record_form import CONFIRMED, GRANTED
from gpuplugin.settings.sharing import MPS, TIME_SLICING

GPU, DEV, SECONDS = "nvidia.com/gpu", "nvidia.com/gpu.dev", 30.0
STAYS = 2.6  # seconds in which all is looked at again at least once
WHOLE: dict[str, Any] = {"version": "v1"}
Set = Callable[[dict[str, Any]], None]


def shared(replicas: int, kind: str = "timeSlicing", **more: Any) -> dict[str, Any]:
    """NVIDIA's file for GPUs of so many replicas."""
    return {"version": "v1", "sharing": {kind: {"resources": [{"name": "gpu", "replicas": replicas, **more}]}}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("twice") / "root"
    return fakehost.build(str(root), 2, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def only(host: Host, env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    with gpu_node(host, env, debian_image, busybox_tree) as found:
        writable(found, host.root)
        yield found
        found.end_shims()


@pytest.fixture
def node(only: Node) -> Iterator[Node]:
    """The node, whose pods and plugins are gone after the test."""
    yield only
    if not only.runs:
        only.start()
    only.remove()
    only.alone()


@pytest.fixture
def inside(node: Node, host: Host, tmp_path: Path) -> Containers:
    return Containers(node, host, tmp_path / "nodes")


@pytest.fixture
def share(tmp_path: Path) -> Set:
    """What writes a file of NVIDIA's, which is `file` beside it."""

    def write(content: dict[str, Any]) -> None:
        aside = tmp_path / "aside"
        aside.write_text(json.dumps(content))
        aside.rename(tmp_path / "sharing.json")

    write(WHOLE)
    return write


@pytest.fixture
def one(node: Node, env: dict[str, str], tmp_path: Path, share: Set) -> Iterator[Plugin]:
    """The plugin, with GPUs that are whole."""
    with plugin(node, env, f"--config-file={tmp_path}/sharing.json") as found:
        found.offers()
        assert until(lambda: GRANTED not in record(found).read_text(), SECONDS)  # what kubelet has not confirmed yet
        yield found


def record(one: Plugin) -> Path:
    return Path(one.env["GPUSHIM_STATE"], "device-plugin/allocations.json")


def holder(node: Node) -> str:
    """Create the pod that has a GPU, and return the id that it has."""
    node.pod("holder", {GPU: 1}, command=ENDING)
    (held,) = node.held("holder")[GPU]
    return held


def other(host: Host, held: str) -> str:
    """The GPU that the holder has nothing of."""
    (found,) = {gpu.uuid for gpu in host.gpus} - {held.partition("::")[0]}
    return found


def kept(one: Plugin, inside: Containers, wanted: set[str], seconds: float = STAYS) -> None:
    """Wait until kubelet has all of this, and see that it never has what excludes anything that a container has."""
    end, running = 0.0, inside.look()

    def safe() -> bool:
        nonlocal end
        view = one.node.everything()
        bad = inside.offered(view, running)
        assert not bad, f"{bad} can be had\n{one.said()[-3000:]}"
        if not end and wanted <= {key for ids in view.values() for key in ids}:
            end = time.monotonic() + seconds
        return bool(end) and time.monotonic() > end

    assert until(safe, SECONDS), f"{one.node.everything()} {one.said()[-3000:]}"
    assert inside.look() == running


def parts(gpu: str, replicas: int) -> set[str]:
    return {f"{gpu}::{number}" for number in range(replicas)}


def fill(node: Node, inside: Containers, resource: str, count: int) -> None:
    """Take all that can be had, and one more, which is refused."""
    pods = create(node, resource, count + 1)
    assert [bool(pod.container) for pod in pods].count(False) == 1, pods
    assert [pod.phase for pod in pods].count("Failed") == 1, pods
    inside.look()


def create(node: Node, resource: str, count: int) -> list[Pod]:
    """Create pods at once, and wait until each runs or is refused."""
    for number in range(count):
        node.create(f"takes{number}", {resource: 1}, command=ENDING)
    return [node.wait(f"takes{number}") for number in range(count)]


def test_a_whole_gpu_through_a_restart_that_shares(
    node: Node, host: Host, one: Plugin, share: Set, inside: Containers
) -> None:
    held = holder(node)
    rest = parts(other(host, held), 2)
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second time it waits already
        one.stop(number)
        share(shared(2))
        one.start()
        kept(one, inside, {held} | rest)
    fill(node, inside, GPU, 2)
    inside.end("holder")
    kept(one, inside, rest | parts(held, 2), seconds=0)


def test_a_start_beside_a_kubelet_that_has_just_started(
    node: Node, host: Host, one: Plugin, share: Set, inside: Containers
) -> None:
    held = holder(node)
    node.stop(signal.SIGKILL)
    one.stop(signal.SIGKILL)
    share(shared(2))
    one.start()
    node.start()
    kept(one, inside, {held} | parts(other(host, held), 2))
    fill(node, inside, GPU, 2)
    (before,) = (name for name, pod in inside.pods.items() if pod == "holder")
    (pid,) = (pid for path, pid in inside.running().items() if f"/{before}/" in path)
    os.kill(pid, signal.SIGKILL)  # kubelet starts the container again, and asks nobody for its GPU
    assert until(lambda: "holder" in {pod for name, pod in node.containers().items() if name != before}, SECONDS)
    assert "holder" in {inside.pods[name] for name in inside.look()}


def test_what_kubelet_has_promised_is_offered_after_its_start(
    node: Node, one: Plugin, share: Set, inside: Containers
) -> None:
    """As after a boot: nothing runs, and a pod that is admitted again needs the GPU that the checkpoint has."""
    held = holder(node)
    node.stop()
    one.stop()
    (node.work / "manifests" / "holder.json").unlink()
    for pid in inside.running().values():
        os.kill(pid, signal.SIGKILL)
    share(shared(2))
    one.start()
    node.start()
    assert until(lambda: one.registered(GPU) and bool(node.allocatable()), SECONDS)
    assert held in node.allocatable()


def test_a_checkpoint_that_kubelet_refuses(node: Node, one: Plugin, inside: Containers) -> None:
    """Its checksum is wrong: kubelet goes on with nothing, and would give the holder's GPU to the next pod."""
    holder(node)
    assert until(lambda: CONFIRMED in record(one).read_text(), SECONDS)
    inside.look()
    node.stop()
    checkpoint = node.kubelet_dir / "device-plugins" / "kubelet_internal_checkpoint"
    found = json.loads(checkpoint.read_text())
    checkpoint.write_text(json.dumps({**found, "Checksum": found["Checksum"] ^ 1}))
    names = ("takes0", "takes1")
    for name in names:
        node.create(name, {GPU: 1}, command=ENDING)
    node.start()
    pods = [node.wait(name) for name in names]
    assert [bool(pod.container) for pod in pods].count(True) <= 1, pods
    assert len(inside.look()) >= 1


def test_an_update_that_renames_and_fails(
    node: Node, host: Host, env: dict[str, str], one: Plugin, inside: Containers, tmp_path: Path
) -> None:
    """No GPU is to be had under two names: not while both run, nor after, nor when the older one is back."""
    held = holder(node)
    free = other(host, held)
    newer_file = tmp_path / "newer.json"
    newer_file.write_text(json.dumps(shared(2, rename="gpu.dev")))
    with plugin(node, env, f"--config-file={newer_file}", name="newer") as newer:

        def both() -> bool:
            names = [{key.partition("::")[0] for key in ids} for ids in node.everything().values()]
            assert sum(map(len, names)) == len(set().union(*names)), node.everything()
            return False

        until(both, STAYS)
        one.stop()
        kept(newer, inside, parts(free, 2))
        fill(node, inside, DEV, 2)
        inside.end("holder")
        kept(newer, inside, parts(free, 2) | parts(held, 2), seconds=0)
        one.start()
        assert until(lambda: one.registered(GPU), SECONDS), one.said()[-3000:]
        newer.stop(signal.SIGKILL)
    kept(one, inside, parts(free, 2) | {held})
    inside.end("takes0", "takes1", "takes2")
    kept(one, inside, {free, held}, seconds=0)


def test_slices_of_time_through_a_restart_to_mps(
    node: Node, host: Host, one: Plugin, share: Set, inside: Containers, tmp_path: Path
) -> None:
    """And back: ids and name are the same, and a GPU is never shared in both ways."""
    daemon = Supervisor(node, {**one.env, "CONFIG_FILE": f"{tmp_path}/sharing.json"}, "gpu")
    every = {part for gpu in host.gpus for part in parts(gpu.uuid, 2)}
    one.stop()
    share(shared(2))
    one.start()
    one.offers(ids=every)
    held = holder(node)
    one.stop()
    share(shared(2, "mps"))
    daemon.start()
    try:
        one.start()
        divided(one, other(host, held), MPS)
        kept(one, inside, parts(other(host, held), 2) | {held})
        three(one, inside)
        inside.end("holder")
        kept(one, inside, every, seconds=0)
        held = holder(node)
        assert inside.look()
        one.stop()
        share(shared(2))
        one.start()
        divided(one, other(host, held), TIME_SLICING)
        kept(one, inside, parts(other(host, held), 2) | {held})
        three(one, inside)
    finally:
        daemon.stop()


def divided(one: Plugin, gpu: str, kind: str) -> None:
    """Wait until a GPU is shared in this way: what has ended just now keeps it in the one before, and offered."""

    def so() -> bool:
        page = json.loads(record(one).read_text().partition("\n")[0])
        (division,) = page["gpus"][gpu]["divisions"].values()
        return {part["share"] and part["share"]["kind"] for part in division["parts"].values()} == {kind}

    assert until(so, SECONDS), one.said()[-3000:]


def three(one: Plugin, inside: Containers) -> None:
    """Take what can be had beside the holder's, which is of the holder's way or of the other GPU; remove it."""
    pods = create(one.node, GPU, 3)
    assert [bool(pod.container) for pod in pods].count(True) >= 2, f"{pods}\n{one.said()[-4000:]}"
    inside.look()
    inside.end(*(f"takes{number}" for number in range(3)))
