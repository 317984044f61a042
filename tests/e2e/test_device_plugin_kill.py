"""Plugin, kubelet and containerd killed at random moments, while pods are made and removed.

$GPUSHIM_KILL_SECONDS says how long, $GPUSHIM_KILL_SEED repeats a run as far as a machine repeats itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import trees
from e2e.engines import SYSTEM_PATH, run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import Plugin, gpu_node, plugin
from e2e.podgpus import GPU, gpus
from fakehost import Host
from gpuplugin.book.records import FORMER
from gpushim.refresh import keep

SECONDS = float(os.environ.get("GPUSHIM_KILL_SECONDS", "40"))
SEED = os.environ.get("GPUSHIM_KILL_SEED") or str(time.time_ns())
PODS = 4  # at most, of one or two GPUs each
STEADY = 60.0  # seconds until all that was killed and made has settled


@pytest.fixture(scope="module")
def node(gpu_host: Host, gpushim_env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """A node of the simulated host."""
    with gpu_node(gpu_host, gpushim_env, debian_image, busybox_tree) as found:
        yield found


def kubelet_up(node: Node) -> None:
    """Start kubelet as systemd does: again until containerd is there."""

    def up() -> bool:
        try:
            node.start()
        except AssertionError:
            node.stop(signal.SIGKILL)
            return False
        return True

    assert until(up, STEADY), node.said()


def strike(node: Node, one: Plugin, chance: random.Random) -> str:
    """Kill one or more of the three, and bring them back, both in any order and at any moment."""
    daemon = node.engine.daemon
    assert daemon is not None
    down: dict[str, Callable[[], object]] = {
        "plugin": lambda: one.stop(signal.SIGKILL),
        "kubelet": lambda: node.stop(signal.SIGKILL),
        "containerd": lambda: daemon.stop(signal.SIGKILL),
    }
    up: dict[str, Callable[[], object]] = {
        "plugin": one.start, "kubelet": lambda: kubelet_up(node), "containerd": daemon.start
    }  # fmt: skip
    victims = chance.sample(sorted(down), chance.choice((1, 1, 1, 2, 2, 3)))
    for name in victims:
        down[name]()
        time.sleep(chance.choice((0, chance.random() / 10, chance.random())))
    again = chance.sample(victims, len(victims))
    if "containerd" in again and "kubelet" in again:  # a kubelet waits for it anyway
        again.sort(key="kubelet".__eq__)
    for name in again:
        up[name]()
        time.sleep(chance.choice((0, chance.random() / 2)))
    return " ".join([*victims, "->", *again])


def change(node: Node, pods: set[str], names: Iterator[str], chance: random.Random) -> None:
    """Take away the pods that were refused for good, and make one, or take away any."""
    leaving = [name for name in sorted(pods) if (pod := node.status(name)) and pod.phase == "Failed"]
    if len(pods) - len(leaving) == PODS or (pods and chance.random() < 0.3):
        leaving.append(chance.choice(sorted(pods)))
    else:
        pods.add(name := next(names))
        node.create(name, {GPU: chance.choice((1, 1, 2))})
    for name in set(leaving):
        pods.remove(name)
        (node.work / "manifests" / f"{name}.json").unlink()


def settled(node: Node, pods: set[str]) -> bool:
    """Say whether each pod runs, or was refused for good."""
    found = [node.status(name) for name in pods]
    return all(pod and (pod.phase == "Failed" or (pod.phase == "Running" and pod.container)) for pod in found)


def sockets(node: Node) -> set[str]:
    """Names of the sockets beside kubelet's."""
    folder = node.kubelet_dir / "device-plugins"
    return {path.name for path in folder.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)}


def same(node: Node, pods: set[str], had: dict[str, list[str]]) -> None:
    """Assert that each container still has the GPUs that it was first seen with."""
    for name in pods:
        pod, ids = node.status(name), sorted(node.held(name).get(GPU, []))
        if pod and pod.container and ids:
            assert had.setdefault(pod.container, ids) == ids, name


@pytest.fixture
def orphans(node: Node) -> Iterator[None]:
    """End shims that containerd has lost, as it does when it is killed while it makes a sandbox."""
    yield
    node.end_shims()


@pytest.mark.usefixtures("orphans")
def test_killed_at_any_moment(node: Node, gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    print(f"GPUSHIM_KILL_SEED={SEED}")
    chance, pods, had = random.Random(SEED), set[str](), dict[str, list[str]]()
    names = (f"p{number}" for number in itertools.count())
    state = Path(gpushim_env["GPUSHIM_STATE"])
    ids = {gpu.uuid for gpu in gpu_host.gpus}
    files = {path.name for path in state.iterdir()}
    with plugin(node, gpushim_env) as one:
        one.offers()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(chance.randrange(3)):
                change(node, pods, names, chance)
            time.sleep(chance.choice((0, chance.random(), 6 * chance.random())))
            same(node, pods, had)
            print(f"{time.strftime('%T')} {sorted(pods)} {strike(node, one, chance)}", flush=True)
            if chance.random() < 0.5:  # else the next stroke may heal what this one has broken
                one.offers(ids=ids, seconds=STEADY)
        assert node.engine.daemon is not None
        assert node.engine.daemon.answers()
        assert until(lambda: settled(node, pods), STEADY), {name: node.status(name) for name in pods}
        agree(node, gpu_host, pods, had)
        one.offers(ids=ids, seconds=STEADY)
        if pods:
            node.remove(*pods)
        # Of a pod that ended while kubelet was away, it is not known at once.
        assert until(lambda: FORMER not in (state / "device-plugin/book.json").read_text(), STEADY)
        node.pod("all", {GPU: len(gpu_host.gpus)})  # each can be given out
        assert len(gpus(node, gpu_host, "all")[1]) == len(gpu_host.gpus)
        assert sockets(node) == {"kubelet.sock", "gpushim-gpu.sock"}
        assert one.stop() == 0
        assert sockets(node) == {"kubelet.sock"}
        # What a refresh that was killed has left, the next one takes away.
        run([str(trees.TOP / "bin/gpushim"), "refresh", "--force"], env={"PATH": SYSTEM_PATH, **gpushim_env})
        assert {path.name for path in state.iterdir()} == files | {"device-plugin", keep.LOCK}
        assert "Traceback" not in one.said()


def agree(node: Node, host: Host, pods: set[str], had: dict[str, list[str]]) -> None:
    """Assert that each pod that runs has its GPUs, alone, and that no container runs of those that do not."""
    status = {name: node.status(name) for name in sorted(pods)}
    running = [name for name, pod in status.items() if pod and pod.phase == "Running"]
    print(f"running at the end: {running}, refused: {sorted(pods - set(running))}; containers seen: {len(had)}")
    found = [gpus(node, host, name) for name in running]
    for container, ids in found:
        assert had.setdefault(container, ids) == ids
    given = [uuid for _, ids in found for uuid in ids]
    assert len(given) == len(set(given))
    here = {container for container, _ in found}
    assert until(lambda: containers(node) == here, STEADY), containers(node) ^ here


def containers(node: Node) -> set[str]:
    """Containers that run, but for the pods' sandboxes."""
    rows = [row.split() for row in node.engine.ctr("tasks", "ls", namespace="k8s.io").stdout.splitlines()[1:]]
    kinds = node.engine.ctr("containers", "ls", namespace="k8s.io").stdout.splitlines()[1:]
    boxes = {row.split()[0] for row in kinds if "pause" in row}
    return {row[0] for row in rows if row[2] == "RUNNING"} - boxes
