"""Parts of a GPU for claims of several namespaces, in a real cluster with the chart.

The GPUs and MPS's daemon are simulated, and a shell starts what systemd would; all else is what a cluster
has. That limits are in force: test_dra_limits.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e import claims, worker
from e2e.allocated import built
from e2e.dradeployed import ALONE, becomes, install
from e2e.expect import sees_by_cdi
from e2e.mpsclient import CLIENT, STARTS
from e2e.plane import Cluster
from fakehost import Host

GROUPS = {
    "timeSlicing": [{"name": "gpu", "devices": [0], "replicas": 4}, {"name": "mig-3g.20gb", "replicas": 2}],
    "mps": [{"name": "gpu", "devices": [2], "rename": "gpu.mps", "replicas": 1}],
}
SHARING = json.dumps({"version": "v1", "sharing": {kind: {"resources": rows} for kind, rows in GROUPS.items()}})
CONFIG, FILE = "/etc/gpushim/config.toml", "/etc/gpushim/device-plugin.json"
NAMESPACES = ("default", "team-a", "team-b")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Two GPUs of 40 GiB, and between them one that is divided."""
    return built(tmp_path_factory.mktemp("parts"), 3, mig={1: ["3g.20gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the chart's DRA driver alone, whose GPUs are to be shared."""
    cluster.write("/usr/bin/systemctl", worker.SYSTEMCTL.replace("#!/bin/sh\n", STARTS))
    cluster.write("/etc/gpushim/device-plugin.yaml", SHARING)
    section = '[device-plugin]\nconfig-file = "/etc/gpushim/device-plugin.yaml"\n'
    cluster.write(CONFIG, cluster.run(f"cat {CONFIG}") + section)
    install(cluster, {**ALONE, "config": {"map": {"default": SHARING}}})
    for name in NAMESPACES[1:]:
        cluster.kubectl("create", "namespace", name)
        cluster.kubectl("create", "serviceaccount", "default", f"--namespace={name}", check=False)
    return cluster


def ask(
    cluster: Cluster,
    name: str,
    memory: str,
    namespace: str = "default",
    device_class: str = claims.DRIVER,
    limit: str = "none",
    threads: str = "",
    **more: Any,
) -> None:
    """Create a claim for so much memory of a GPU, all of it for "", and a pod that has it."""
    requests = {**({"memory": memory} if memory else {}), **({"threads": threads} if threads else {})}
    if requests:
        more["capacity"] = {"requests": requests}
    expression = f"device.attributes['{claims.DRIVER}'].memoryLimit == '{limit}'"
    request = claims.request(device_class=device_class, selectors=[{"cel": {"expression": expression}}], **more)
    rows = [claims.claim(name, request), claims.pod(name, name)]
    for row in rows:
        row["metadata"]["namespace"] = namespace
    cluster.apply(*rows)


def running(cluster: Cluster) -> dict[str, int]:
    """Return how often the container of each pod that runs was started."""
    return {
        name: pod["status"]["containerStatuses"][0]["restartCount"]
        for namespace in NAMESPACES
        for name, pod in cluster.pods(namespace=namespace).items()
        if pod["status"]["phase"] == "Running"
    }


def share(cluster: Cluster, name: str, namespace: str) -> tuple[str, str]:
    """Return the id and memory of a claim's part."""
    claim = cluster.get("resourceclaim", name, f"--namespace={namespace}")
    (row,) = claim["status"]["allocation"]["devices"]["results"]
    return row["shareID"], row["consumedCapacity"]["memory"]


def test_four_claims_of_three_namespaces_have_one_gpu_and_a_fifth_waits(cluster: Cluster, host: Host) -> None:
    becomes(cluster, lambda: len(claims.devices(cluster)) == 3, "devices are published")
    homes = [*NAMESPACES, "team-a"]
    for number, namespace in enumerate(homes):
        ask(cluster, f"part{number}", "10Gi", namespace)
    becomes(cluster, lambda: len(running(cluster)) == 4, "four run")
    ask(cluster, "fifth", "16Mi")
    ask(cluster, "whole", "")
    becomes(cluster, lambda: "cannot allocate all claims" in claims.why(cluster, "fifth"), "the fifth waits")
    becomes(cluster, lambda: "cannot allocate all claims" in claims.why(cluster, "whole"), "who wants all waits")
    parts = {share(cluster, f"part{number}", namespace) for number, namespace in enumerate(homes)}
    assert (len(parts), {memory for _, memory in parts}) == (4, {"10Gi"})
    sees_by_cdi(claims.look(cluster, "part0", host, [0]), host, [0])
    assert "10240 of 40960 MiB" in cluster.run("gpushim explain claim default/part0")


def test_the_end_of_one_leaves_the_others(cluster: Cluster) -> None:
    claims.remove(cluster, "part0")
    becomes(
        cluster,
        lambda: running(cluster) == dict.fromkeys(("part1", "part2", "part3", "fifth"), 0),
        "it is the fifth's",
    )
    assert "Pending" in cluster.pods()["whole"]["status"]["phase"]


def test_an_instance_is_shared_by_those_who_ask_for_parts(cluster: Cluster) -> None:
    """Its engines are no claim's alone."""
    for name in ("left", "right"):
        ask(cluster, name, "8Gi", device_class="mig.nvidia.com")
    becomes(cluster, lambda: {"left", "right"} <= running(cluster).keys(), "both run")
    assert claims.held(cluster, "left") == claims.held(cluster, "right")


def test_parts_by_mps_are_clients_of_one_daemon(cluster: Cluster, host: Host) -> None:
    """Each with limits of its own, and the end of one is none for the daemon."""
    wanted = {"mps0": ("16Gi", "25"), "mps1": ("20Gi", "50")}
    for name, (memory, threads) in wanted.items():
        ask(cluster, name, memory, limit="process", threads=threads)
    becomes(cluster, lambda: wanted.keys() <= running(cluster).keys(), "both run")
    uuid = host.gpus[2].uuid
    assert claims.held(cluster, *wanted) == [uuid] * 2
    seen = {name: client(cluster, name) for name in wanted}
    assert {row["pipes"] for row in seen.values()} == {"/run/gpushim/mps/gpu.mps/pipe"}
    assert seen["mps0"]["limits"] == ["25", f"{uuid}=16384M"]
    assert seen["mps1"]["limits"] == ["50", f"{uuid}=20480M"]
    claims.remove(cluster, "mps0")
    assert client(cluster, "mps1")["threads"] == "100.0"  # the daemon's


def client(cluster: Cluster, name: str) -> dict[str, Any]:
    """Be a client of MPS in a pod; return what it sees, and its own limits."""
    box = ("exec", name, "--container=box0", "--")
    names = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    limits = cluster.kubectl(*box, "printenv", *names).split()
    return {**json.loads(cluster.kubectl(*box, "python3", "-c", CLIENT)), "limits": limits}


def test_an_administrator_looks_beside_parts(cluster: Cluster) -> None:
    """As no client, and without a limit. The scheduler counts the least part for it."""
    cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    ask(cluster, "admin", "16Mi", limit="process", adminAccess=True)
    becomes(cluster, lambda: "admin" in running(cluster), "an administrator looks")
    assert "CUDA_MPS" not in cluster.kubectl("exec", "admin", "--container=box0", "--", "env")
