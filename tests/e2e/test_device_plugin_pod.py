"""The device plugin as a pod of its image: without a capability, a file to write, or a look at the host's files.

The real kubelet runs it, and gpushim-runtime gives it NVML, as it does in a cluster; the snapshot is the node's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fakehost
from e2e import image, kube, trees
from e2e.engines import SYSTEM_PATH, run
from e2e.kube import Node, Pod
from e2e.leftovers import until
from e2e.podgpus import GPU, gpus
from fakehost import Host
from gpuplugin.snapshot import node_snapshot
from gpushim.ground.errors import DRIVER

COMPILED = str(trees.TOP / ".cache" / "fakehost")
SECONDS = 30.0
NOTICED = 10.0  # seconds until a snapshot that was renewed is gone by
EACH = 0.011  # seconds between looks at what kubelet would give out; it answers a hundred a second
PROGRAM = str(trees.TOP / "bin" / "gpushim")
LOST = '"Mark all resources Unhealthy for resource"'  # in kubelet's log, which takes all devices of the resource then
WANTS = {"VISIBLE_DEVICES": "all-usable", "DRIVER_CAPABILITIES": "utility"}
CONFINED = {
    "runAsUser": 0,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A simulated host of this file's own, with three GPUs."""
    root = tmp_path_factory.mktemp("pod") / "root"
    return fakehost.build(str(root), 3, compile_cache=COMPILED)


@pytest.fixture(scope="module")
def node(node: Node) -> Node:
    """A node of that host, which has the image."""
    node.engine.load(image.archive(), ("k8s.io",))
    return node


@pytest.fixture(scope="module")
def ids(host: Host) -> list[str]:
    """The ids of the host's GPUs."""
    return sorted(gpu.uuid for gpu in host.gpus)


def refresh(env: dict[str, str], *words: str) -> None:
    """Renew the snapshot on the node."""
    run([PROGRAM, "refresh", *words], env={"PATH": SYSTEM_PATH, **env})


def deploy(node: Node, host: Host, env: dict[str, str], name: str) -> None:
    """Create a pod of the plugin.

    Args:
        node: whose kubelet runs it.
        host: whose kernel it sees: the simulated /proc stands for the kernel's own.
        env: of the node's gpushim.
        name: of the pod.
    """
    plugins = "/var/lib/kubelet/device-plugins"
    os.makedirs(f"{env['GPUSHIM_STATE']}/book", exist_ok=True)
    mounts = {
        "plugins": (plugins, plugins, False),
        "pods": ("/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", True),
        "state": (env["GPUSHIM_STATE"], "/run/gpushim", False),
        "book": (f"{env['GPUSHIM_STATE']}/book", "/var/lib/gpushim/device-plugin", False),
        "settings": (os.path.dirname(env["GPUSHIM_CONFIG"]), "/etc/gpushim", True),
        "proc": (f"{host.root}/proc", f"{host.root}/proc", True),
    }
    (port,) = kube._ports(1)
    probe = {"httpGet": {"path": "/readyz", "port": port, "host": "127.0.0.1"}, "periodSeconds": 1}
    node.create(
        name,
        {},
        image=image.NAME,
        command=["/usr/bin/gpushim-device-plugin"],
        args=["--fail-on-init-error=false", f"--metrics=127.0.0.1:{port}"],
        securityContext=CONFINED,
        env=[
            *({"name": f"NVIDIA_{key}", "value": value} for key, value in WANTS.items()),
            {"name": node_snapshot.POD, "value": "10.250.0.1"},  # which kubelet adds where there is an API server
        ],
        volumeMounts=[{"name": key, "mountPath": to, "readOnly": ro} for key, (_, to, ro) in mounts.items()],
        spec={
            "volumes": [{"name": key, "hostPath": {"path": at}} for key, (at, _, _) in mounts.items()],
            "terminationGracePeriodSeconds": 15,
        },
        readinessProbe=probe,
    )


@pytest.fixture(scope="module")
def plugin(node: Node, host: Host, env: dict[str, str], ids: list[str]) -> Iterator[str]:
    """The plugin's pod, which serves; its name."""
    refresh(env)
    deploy(node, host, env, "plugin")
    try:
        assert until(lambda: node.allocatable() == ids, SECONDS), said(node, "plugin")
        yield "plugin"
    finally:
        node.remove()
        node.alone()


def box(node: Node, name: str) -> dict[str, Any]:
    """What kubelet says of a pod's container."""
    rows = json.loads(node._get("/pods") or "{}").get("items") or ()
    found = [
        row["status"].get("containerStatuses") or [{}]
        for row in rows
        if row["metadata"]["name"].startswith(f"{name}-")
    ]
    return found[0][0] if found else {}


def said(node: Node, name: str) -> str:
    """The end of what a pod's containers have said."""
    logs = sorted(node.work.glob(f"logs/*_{name}-*/*/*.log"))
    return "".join(log.read_text() for log in logs)[-4000:] + str(node.status(name))


def registrations(node: Node, name: str) -> int:
    """How often the plugin in a pod has registered."""
    return said(node, name).count("kubelet has registered")


def status(env: dict[str, str]) -> dict[str, Any]:
    """Ask the plugin from the node."""
    done = run([PROGRAM, "device-plugin", "status", "--format=json"], env={"PATH": SYSTEM_PATH, **env})
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_serves_with_no_capability_and_watches(
    node: Node, host: Host, env: dict[str, str], ids: list[str], plugin: str
) -> None:
    pod = node.wait(plugin)
    own = node.run(pod.container, ["/usr/bin/python3", "-c", "print(open('/proc/1/status').read())"])
    assert "CapEff:\t0000000000000000" in own
    assert node.pod("user", {GPU: 1}).container
    assert gpus(node, host, "user")[1][0] in ids
    assert until(lambda: sorted(status(env)["watched"]["watching"]) == ids, SECONDS), said(node, plugin)
    assert status(env)["problem"] == ""


def test_a_snapshot_renewed_by_hand(node: Node, host: Host, env: dict[str, str], ids: list[str], plugin: str) -> None:
    lost = host.gpus[1]
    host.lose(lost.index)
    try:
        subprocess.run([PROGRAM, "refresh"], env={"PATH": SYSTEM_PATH, **env}, capture_output=True, check=False)
        subprocess.run(
            [PROGRAM, "refresh", "--force"], env={"PATH": SYSTEM_PATH, **env}, capture_output=True, check=False
        )
        assert until(lambda: node.allocatable() == [one for one in ids if one != lost.uuid], NOTICED), status(env)
    finally:
        host.find(lost.index)
    refresh(env, "--force")
    assert until(lambda: node.allocatable() == ids, NOTICED), status(env)


def test_another_driver_ends_it_and_kubelet_starts_it_anew(
    node: Node, host: Host, env: dict[str, str], ids: list[str], plugin: str
) -> None:
    first = box(node, plugin)["containerID"]
    shutil.rmtree(host.lib_path)
    host.driver = host.module_version = "550.54.14"
    host.install(COMPILED)
    refresh(env, "--force")
    assert until(lambda: box(node, plugin).get("restartCount") == 1, SECONDS), said(node, plugin)
    assert box(node, plugin)["lastState"]["terminated"]["exitCode"] == DRIVER
    assert "for kubelet to start it again" in said(node, plugin)
    assert until(lambda: node.allocatable() == ids and box(node, plugin)["containerID"] != first, SECONDS)
    assert until(lambda: sorted(status(env)["watched"]["watching"]) == ids, SECONDS), said(node, plugin)


def test_two_instances_hand_over_while_pods_are_admitted(
    node: Node, host: Host, env: dict[str, str], ids: list[str], plugin: str
) -> None:
    seen: list[list[str]] = []
    before = node.log.stat().st_size
    with looking(node, seen):
        deploy(node, host, env, "newer")
        assert until(lambda: box(node, "newer").get("ready") is True, SECONDS), said(node, "newer")
        assert registrations(node, "newer") == 1
        (node.work / "manifests" / f"{plugin}.json").unlink()
        found: list[Pod] = []
        until_when = time.monotonic() + 4 * SECONDS
        while node.status(plugin) or registrations(node, "newer") < 2:  # once the older one is gone, it does again
            assert time.monotonic() < until_when, said(node, "newer")
            name = f"user{len(found)}"
            found.append(node.pod(name, {GPU: 1}))
            node.remove(name)
    assert [pod.why for pod in found if not pod.container] == []
    assert [one for one in seen if one != ids] == []
    assert LOST not in node.log.read_text(errors="replace")[before:]  # which may last 10 ms, and be seen by no look
    assert len(seen) > 20
    assert node.pod("last", {GPU: 1}).container


@contextlib.contextmanager
def looking(node: Node, seen: list[list[str]]) -> Iterator[None]:
    """Take down what kubelet would give out, all the time of the block."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(EACH):
            seen.append(node.allocatable())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
