"""The DRA driver in a cluster: two instances, updates, sockets that go, no API server, another NVIDIA driver.

One story on one cluster, in the order of the tests, without a device plugin. The pod `stays` has a claim throughout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e import claims, workload
from e2e.allocated import built
from e2e.controlplane import served
from e2e.deployed import CHART, GPU, rolled_out
from e2e.dradeployed import ALONE, away, becomes, driver, install, kernel, kill, log, runs, second, unwiped, versions
from e2e.helm import NAMESPACE
from e2e.kube import CLAIMS
from e2e.plane import Cluster
from e2e.reach import Pods
from fakehost import Host

LONG = "GPUSHIM_LONG" in os.environ
ABSENT = 30.0 if LONG else 3.0  # seconds without an API server
RELEASED = "/run/gpushim/device-plugin/released"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Four GPUs."""
    return built(tmp_path_factory.mktemp("life"), 4)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster, host: Host) -> Cluster:
    """A cluster with the DRA driver, and a pod that has a claim."""
    install(cluster, ALONE, kernel(host))
    cluster.apply(claims.claim("stays"), claims.pod("stays", "stays"))
    runs(cluster, "stays")
    return cluster


@pytest.fixture(scope="module")
def inside(cluster: Cluster, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Pods:
    return Pods(cluster.node, host, tmp_path_factory.mktemp("reach") / "nodes")


@pytest.fixture(autouse=True)
def stays(cluster: Cluster) -> Any:
    """What the pod has is the same after each test, and so is its container."""
    before = what_it_has(cluster)
    yield
    assert what_it_has(cluster) == before


def what_it_has(cluster: Cluster) -> tuple[list[str], int, str]:
    (box,) = cluster.pods()["stays"]["status"]["containerStatuses"]
    return cluster.node.held("stays")[CLAIMS], box["restartCount"], box["containerID"]


def gets(cluster: Cluster, inside: Pods, *names: str) -> None:
    """Have pods with claims of their own get GPUs that nobody has, and end."""
    ask(cluster, *names)
    runs(cluster, *names)
    inside.look()
    claims.remove(cluster, *names)


def ask(cluster: Cluster, *names: str) -> None:
    cluster.apply(*(one for name in names for one in (claims.claim(name), claims.pod(name, name))))


def test_two_instances(cluster: Cluster, inside: Pods) -> None:
    """The newer one is killed, and the older one goes on; then the older one is, and the newer one does."""
    before = versions(claims.slices(cluster))
    with unwiped(cluster):
        newer = second(cluster, "newer")
        gets(cluster, inside, "a")
        end(cluster, newer)
        gets(cluster, inside, "b")
        newer = second(cluster, "newer")
        ask(cluster, "c")
        runs(cluster, "c")
        with away(cluster):
            gets(cluster, inside, "d")
        end(cluster, newer)
        gets(cluster, inside, "e")
        claims.remove(cluster, "c")  # that another instance gave
    assert versions(claims.slices(cluster)) == before


def end(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Kill an instance that is a pod of its own."""
    words = ("delete", "pod", pod["metadata"]["name"], f"--namespace={NAMESPACE}", "--wait=false")
    kill(cluster, pod, lambda: cluster.kubectl(*words))


def test_two_instances_that_want_other_slices(cluster: Cluster, host: Host, inside: Pods) -> None:
    """Those of the newer one are published, and nothing else as long as it lives."""
    before = claims.devices(cluster)
    hidden = max({gpu.uuid for gpu in host.gpus} - {*claims.held(cluster, "stays")})
    newer = second(cluster, "newer", f"--exclude={hidden}")
    wanted = {uuid: one for uuid, one in before.items() if uuid != hidden}
    becomes(cluster, lambda: claims.devices(cluster) == wanted, "one is hidden")
    there = versions(claims.slices(cluster))
    gets(cluster, inside, "a")
    assert versions(claims.slices(cluster)) == there
    end(cluster, newer)
    becomes(cluster, lambda: claims.devices(cluster) == before, "all are there")


def test_a_rolling_update_under_load(cluster: Cluster, inside: Pods) -> None:
    """No pod fails, and slices stay."""
    (old,) = driver(cluster)
    before = versions(claims.slices(cluster))
    with unwiped(cluster):
        job = workload.job("load", {GPU: 1}, 1000)
        job["spec"]["template"]["spec"].pop("runtimeClassName")
        cluster.apply(job)
        cluster.wait_for(lambda: workload.succeeded(cluster, "load"), "a pod has come and gone")
        cluster.helm("upgrade", CHART, "gpushim", {**ALONE, "podAnnotations": {"example.org/again": "yes"}})
        rolled_out(cluster)
        after = workload.succeeded(cluster, "load") + 2
        cluster.wait_for(lambda: workload.succeeded(cluster, "load") >= after, "pods come and go after it")
    cluster.kubectl("delete", "job", "load")
    assert [*driver(cluster)] != [old]
    assert versions(claims.slices(cluster)) == before


def test_sockets_that_are_gone_are_back(cluster: Cluster, inside: Pods) -> None:
    """Each, and the directory of the one for calls; kubelet has the driver before it takes the slices away."""
    registry = cluster.node.kubelet_dir / "plugins_registry"
    own = cluster.node.kubelet_dir / "plugins" / claims.DRIVER

    with unwiped(cluster):
        for folder, remove in ((registry, unlink), (own, unlink), (own, discard)):
            before = sockets(folder)
            remove(folder)
            becomes(cluster, partial(others, folder, before), f"{folder} has another")
        gets(cluster, inside, "a")


def sockets(folder: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_ino) for path in folder.glob("*.sock")}


def others(folder: Path, before: set[tuple[str, int]]) -> bool:
    with contextlib.suppress(FileNotFoundError):  # it went meanwhile
        return bool(sockets(folder) - before)
    return False


def unlink(folder: Path) -> None:
    for path in folder.glob("*.sock"):
        path.unlink()


def discard(folder: Path) -> None:
    gone = folder.with_name("gone")
    folder.rename(gone)  # at once: the driver would make some again meanwhile
    shutil.rmtree(gone)


def test_an_api_server_that_is_away(cluster: Cluster, inside: Pods) -> None:
    """Nothing is forgotten, and slices stay; a driver that starts meanwhile does so, too."""
    before = versions(claims.slices(cluster))
    ask(cluster, "a")
    runs(cluster, "a")
    cluster.server.stop(signal.SIGKILL)
    inside.look()
    time.sleep(ABSENT)
    cluster.server.start()
    served(cluster.place, cluster.work)
    gets(cluster, inside, "b")
    claims.remove(cluster, "a")
    assert versions(claims.slices(cluster)) == before


def test_a_driver_that_is_upgraded_below(cluster: Cluster, host: Host, inside: Pods) -> None:
    """Released, the node has a slice without devices, and all again when the driver is another."""
    before = claims.devices(cluster)
    cluster.run(f"mkdir -p -m 700 {os.path.dirname(RELEASED)}; : >{RELEASED}")
    becomes(cluster, lambda: claims.slices(cluster) and not claims.devices(cluster), "the slice is empty")
    assert "the GPUs are released until" in log(cluster)
    ask(cluster, "a")
    host.modify = not host.modify  # a module with other parameters is another one
    host.update()
    cluster.run("gpushim refresh")
    becomes(cluster, lambda: claims.devices(cluster) == before, "all is back")
    assert not cluster.run(f"ls {RELEASED} 2>/dev/null || true")
    runs(cluster, "a")
    inside.look()
    claims.remove(cluster, "a")
