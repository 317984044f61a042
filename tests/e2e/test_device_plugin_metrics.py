"""What Prometheus sees of a node's GPUs and pods, beside a real kubelet: all values are the simulated truth.

The GPUs are simulated: one whole, one that is given out three times, one with two MIG instances, and one that gets
into trouble. GPUSHIM_DASHBOARD names a file that gets what a real Prometheus answers to the dashboard's panels after
some minutes of work: packaging/kubernetes/dashboard.py draws them.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

import fakehost
from e2e import kube, trees
from e2e.gpuwork import work
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import Plugin, allocated, plugin
from e2e.podgpus import GPU
from e2e.prometheus import get, of, prometheus, scrape
from fakehost import Host
from gpuplugin.metrics import readings

SECONDS = 30.0
SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
SHARING = f"""version: v1
sharing:
  timeSlicing:
    resources:
    - {{name: {GPU}, devices: [1], rename: {SHARED}, replicas: 3}}
"""
ANSWER = 0.1  # seconds: of an Allocate at its best of several
TRUTH = {
    "sm_clock": ("DCGM_FI_DEV_SM_CLOCK", 1410, 1),
    "mem_clock": ("DCGM_FI_DEV_MEM_CLOCK", 1593, 1),
    "temperature": ("DCGM_FI_DEV_GPU_TEMP", 41, 1),
    "memory_temperature": ("DCGM_FI_DEV_MEMORY_TEMP", 55, 1),
    "power": ("DCGM_FI_DEV_POWER_USAGE", 61234, 0.001),
    "energy": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 10**12, 1),
    "pcie_replays": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 3, 1),
    "gpu_utilization": ("DCGM_FI_DEV_GPU_UTIL", 77, 1),
    "memory_utilization": ("DCGM_FI_DEV_MEM_COPY_UTIL", 21, 1),
    "encoder_utilization": ("DCGM_FI_DEV_ENC_UTIL", 4, 1),
    "decoder_utilization": ("DCGM_FI_DEV_DEC_UTIL", 5, 1),
    "memory_used": ("DCGM_FI_DEV_FB_USED", 7 << 30, 2**-20),
    "correctable_rows": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1, 1),
    "uncorrectable_rows": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 2, 1),
    **({"processes": ("gpushim_gpu_processes", 6, 1)} if readings.can_see_processes() else {}),
}  # by the simulated figure: the metric, the figure, the factor


HAMMER = """import sys, urllib.request
while True:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
    print(end=".", flush=True)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The four GPUs."""
    root = tmp_path_factory.mktemp("metrics") / "root"
    gpus = [{}, {}, {"mig": ["1g.5gb", "1g.5gb"]}, {}]
    return fakehost.build(str(root), gpus, compile_cache=str(trees.TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def env(env: dict[str, str]) -> dict[str, str]:
    """The host's settings and snapshot, and the node's name."""
    return {**env, "NODE_NAME": "worker-1"}


@pytest.fixture(scope="module")
def ports() -> list[int]:
    """Of the plugin and of Prometheus."""
    return kube._ports(2)


@pytest.fixture(scope="module")
def one(
    node: Node, env: dict[str, str], ports: list[int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plugin]:
    """A plugin that serves metrics."""
    path = tmp_path_factory.mktemp("sharing") / "config.yaml"
    path.write_text(SHARING)
    flags = ("--mig-strategy=mixed", f"--config-file={path}", f"--metrics=127.0.0.1:{ports[0]}")
    with plugin(node, env, *flags) as found:
        found.offers(GPU)
        found.offers(SHARED)
        found.offers(MIG)
        yield found


@pytest.fixture(scope="module")
def pods(one: Plugin) -> dict[str, str]:
    """Pods that have a GPU, two replicas of one, and a MIG instance; by what they ask for."""
    wanted = {"whole": GPU, "first": SHARED, "second": SHARED, "slice": MIG}
    for name, resource in wanted.items():
        one.node.create(name, {resource: 1})
    for name in wanted:
        assert one.node.wait(name).container, one.node.status(name)
    return wanted


def test_values_are_the_simulated_truth(one: Plugin, host: Host, ports: list[int], pods: dict[str, str]) -> None:
    gpu = next(gpu for gpu in host.gpus if [gpu.uuid] == one.node.held("whole")[GPU])
    host.figure(gpu.index, **{name: figure for name, (_, figure, _) in TRUTH.items()})
    host.xid(gpu.index, 31)
    wanted = {metric: figure * factor for metric, figure, factor in TRUTH.values()} | {"DCGM_FI_DEV_XID_ERRORS": 31}

    def told() -> dict[str, float]:
        found = scrape(ports[0])
        return {
            name: value for name in wanted for labels, value in found.get(name, ()) if labels["gpu"] == str(gpu.index)
        }

    assert until(lambda: all(math.isclose(told().get(name, -1), value) for name, value in wanted.items()), SECONDS), (
        told()
    )
    ((labels, _),) = of(ports[0], "DCGM_FI_DEV_SM_CLOCK", gpu=str(gpu.index))
    assert labels == {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "device": f"nvidia{gpu.minor}",
        "modelName": gpu.model,
        "Hostname": "worker-1",
        "namespace": "default",
        "pod": f"whole-{kube.NAME}",
        "container": "main",
    }


def test_replicas_and_mig_instances_have_their_pods(
    one: Plugin, host: Host, ports: list[int], pods: dict[str, str]
) -> None:
    replicas = {of_pod(one, name, SHARED).partition("::")[2]: f"{name}-{kube.NAME}" for name in ("first", "second")}
    found = of(ports[0], "DCGM_FI_DEV_FB_USED", gpu="1")
    assert {labels["vgpu"]: labels["pod"] for labels, _ in found} == replicas
    mig = next(mig for mig in host.gpus[2].mig if mig.uuid == of_pod(one, "slice", MIG))
    host.figure(2, gi=mig.gi, memory_used=1 << 30, processes=2)
    wanted = {
        "GPU_I_ID": str(mig.gi),
        "GPU_I_PROFILE": "1g.5gb",
        "pod": f"slice-{kube.NAME}",
        "UUID": host.gpus[2].uuid,
    }
    assert until(lambda: [value for _, value in of(ports[0], "DCGM_FI_DEV_FB_USED", **wanted)] == [1024], SECONDS)
    assert not of(ports[0], "DCGM_FI_DEV_GPU_UTIL", gpu="2")
    assert not [one for one in scrape(ports[0])["gpushim_gpu_figures_up"] if "GPU_I_ID" in one[0]]


def of_pod(one: Plugin, name: str, resource: str) -> str:
    (found,) = one.node.held(name)[resource]
    return found


def test_each_panel_of_the_dashboard_shows_something(
    one: Plugin, host: Host, ports: list[int], pods: dict[str, str], tmp_path: Path
) -> None:
    with prometheus(tmp_path, f"127.0.0.1:{ports[0]}", ports[1]) as found:
        with pytest.raises(grpc.RpcError, match="has no device"):
            allocated(one.node, "GPU-none")

        def empty() -> list[str]:
            return [panel["title"] for panel in found.answers() if not all(panel["answers"])]

        assert until(lambda: not empty(), SECONDS), empty()
        holders = found.now('count by (pod) (DCGM_FI_DEV_FB_USED{pod!=""})')
        assert {row["metric"]["pod"] for row in holders} == {f"{name}-{kube.NAME}" for name in pods}
        free = found.now('DCGM_FI_DEV_FB_USED{gpu="2", GPU_I_ID="", pod!=""}')
        assert free == []  # and not the plugin's own
        if os.environ.get("GPUSHIM_DASHBOARD"):
            work(one.node, host, {SHARED: 1})
            answers = json.dumps(found.answers(step=2.0))
            Path(os.environ["GPUSHIM_DASHBOARD"]).write_text(answers)


def test_hostile_scrapers_delay_no_allocate(one: Plugin, host: Host, ports: list[int]) -> None:
    """Half of the clients never end their request, half do not read the answer; a process scrapes without a pause."""
    one.node.remove("whole")  # nobody else has the GPU; the pod's last process may end a moment later
    before = allocated(one.node, host.gpus[0].uuid, 200)
    hammer = subprocess.Popen([sys.executable, "-c", HAMMER, str(ports[0])], stdout=subprocess.PIPE)
    try:
        with ExitStack() as kept:
            for number in range(64):
                client = kept.enter_context(socket.create_connection(("127.0.0.1", ports[0])))
                client.send(b"GET /metrics HTTP/1.1\r\n" + b"\r\n" * (number % 2))
            assert hammer.stdout
            assert hammer.stdout.read(1)
            took = allocated(one.node, host.gpus[0].uuid, 1000)
    finally:
        hammer.kill()
        hammer.communicate()
    shown = [f"{1000 * one:.2f}" for one in (before[100], before[-1], took[500], took[-1])]
    print("an Allocate took {} ms, {} at most; scraped without a pause {}, {} at most".format(*shown))
    assert took[500] < ANSWER
    assert get(ports[0])[0] == 200
