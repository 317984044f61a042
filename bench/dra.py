#!/usr/bin/env python3
"""Measure what the DRA driver costs a node, and how long pods wait for it, and print it.

    tests/apart.py .venv/bin/python bench/dra.py [--rounds N] [--rest SECONDS] [--only node|cluster]

Needs root, tools/setup.sh and the archive of Kubernetes (tests/e2e/kube.py). The host is simulated: 9 GPUs, 8
with 7 MIG instances each. First the driver's half on the node alone, the other half being this process; then the
chart in a cluster of a real API server, scheduler, controller-manager, kubelet and containerd, without the device
plugin. Rows, of which times are medians, with the least and the most:

    prepare         of one claim, through gRPC, with an answer of the other half at once
    slices          from kubelet's NotifyRegistrationStatus (in the driver's log) to a complete pool in a watch: once
                    after the installation, then after restarts of kubelet, which takes the slices away
    pod             from a pod with a claim in a watch to the first line that its container writes, as containerd's
                    log dates it, and the same without a claim; prepare as kubelet's metrics have it, a mean with the
                    question to the API server in it
    health          from an XID of one MIG instance to the taint in the watch
    rest            CPU of both halves (schedstat) and of NVML's children, requests of the driver's account in the API
                    server's audit log, memory; a second time while a pod has a claim
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOP / name) for name in (".", "tests", "plugin", "shim", "hook", "vendor")]

import grpc  # noqa: E402
from bench.audit import Audit, kinds  # noqa: E402
from bench.processes import memory, of_container, scheduled, session  # noqa: E402
from bench.watch import Watch, watching  # noqa: E402

import fakehost  # noqa: E402
import scratch  # noqa: E402
from e2e import claims, dranode, helm, image, kube, plane, trees  # noqa: E402
from e2e.deployed import rolled_out  # noqa: E402
from e2e.plane import Cluster  # noqa: E402
from e2e.witness import settings  # noqa: E402
from fakehost import Host  # noqa: E402
from gpuplugin.kubelet import dra  # noqa: E402
from gpushim.containers import protobuf  # noqa: E402

CHART = TOP / "packaging" / "kubernetes" / "chart"
VALUES: helm.Values = {
    "image": {"repository": image.NAME.rpartition(":")[0], "pullPolicy": "Never"},
    "plugin": {"enabled": False},
    "dra": {"enabled": True},
}
USER = f"system:serviceaccount:{helm.NAMESPACE}:gpushim-dra-driver"
REGISTERED = "kubelet has registered the DRA driver"
CONTAINED = 94  # an XID of one GPU instance, after which it is unhealthy for some time
EVENTS = "etc/fakehost.events"
TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
DEVICES = 57  # which one slice has
SETTLED = 60.0  # seconds after which nothing of the start is left
PREPARES = 300
SLICES = f"/apis/{claims.VERSION}/resourceslices?watch=1"
PODS = "/api/v1/namespaces/default/pods?watch=1"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="pods, and healths; kubelet starts a quarter as often")
    parser.add_argument("--rest", type=float, default=120, metavar="SECONDS", help="how long it rests (default 120)")
    parser.add_argument("--only", choices=("node", "cluster"), default="", help="one of the two parts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch.top()) as folder:
        os.chmod(folder, 0o755)
        migs = dict.fromkeys(range(8), ["1g.5gb"] * 7)
        cache = str(TOP / ".cache" / "fakehost")
        host = fakehost.build(f"{folder}/root", 9, mig=migs, compile_cache=cache)
        if options.only != "cluster":
            on_node(host)
        if options.only != "node":
            in_cluster(Path(folder), host, options.rounds, options.rest)


def say(name: str, text: str) -> None:
    """Print a row."""
    print(f"  {name:<44} {text}", flush=True)


def spread(seconds: list[float]) -> str:
    """Return the median of some times, the least and the most."""
    least, middle, most = (1000 * one for one in (min(seconds), median(seconds), max(seconds)))
    return f"{middle:.1f} ms; {least:.1f} to {most:.1f}; {len(seconds)} times"


def on_node(host: Host) -> None:
    """Measure what needs no cluster."""
    folder = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))  # for sockets, whose paths are short
    try:
        env = settings(folder, host.root)
        subprocess.run(
            [TOP / "bin/gpushim", "refresh"], env={"PATH": os.environ["PATH"], **env}, check=True, capture_output=True
        )
        with dranode.driver(folder, env) as one:
            preparing(one, host)
    finally:
        shutil.rmtree(folder)


def preparing(one: dranode.Driver, host: Host) -> None:
    """Measure kubelet's calls."""
    names = [f"mig-{mig.uuid.removeprefix('MIG-').lower()}" for gpu in host.gpus[:8] for mig in gpu.mig]
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
    with grpc.insecure_channel(f"unix:{one.endpoint()}", options=options) as channel:

        def method(name: str, answer: str) -> Callable[[str], Any]:
            write, read = (
                partial(protobuf.encode, dra.MESSAGES, "Claims"),
                partial(protobuf.decode, dra.MESSAGES, answer),
            )
            work = channel.unary_unary(f"/{dra.PREPARING[0]}/{name}", write, read)
            return lambda uid: work({"claims": [{"namespace": "d", "uid": uid, "name": f"c-{uid}"}]})

        prepare, unprepare = (
            method("NodePrepareResources", "PreparedClaims"),
            method("NodeUnprepareResources", "UnpreparedClaims"),
        )
        times: list[float] = []
        for number in range(PREPARES):
            uid = f"u{number}"
            one.allocate(uid, names[number % len(names)])
            began = time.perf_counter()
            answer = prepare(uid)
            times.append(time.perf_counter() - began)
            assert not answer["claims"][0]["value"].get("error"), answer
            unprepare(uid)
        say(f"prepare, {len(names)} MIG instances, no API server", spread(times))


def in_cluster(folder: Path, host: Host, rounds: int, rest: float) -> None:
    """Measure the chart in a cluster."""
    audit = Audit(folder, USER)
    pause = trees.image(trees.busybox(folder / "busybox"), "pause:local", ["/bin/sleep", "1000000"])
    debian = trees.image(trees.debian(), "debian:local", ["/bin/sh"])
    with plane.cluster(debian, pause, image.archive(), flags=audit.flags) as cluster:
        cluster.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{host.root}"\n')
        cluster.kubectl("create", "namespace", helm.NAMESPACE)
        with watching(cluster, SLICES) as slices, watching(cluster, PODS) as pods:
            cluster.helm("install", CHART, helm.NAME, VALUES)
            rolled_out(cluster)
            say("registered to a complete pool, first", spread([registered(cluster, slices, 0.0)]))
            say("the same, kubelet restarted", spread([restarted(cluster, slices) for _ in range(rounds // 4)]))
            running(cluster, pods, rounds)
            resting(cluster, audit, rest, "at rest")
            cluster.apply(claims.claim("held"), claims.pod("held", "held"))
            resting(cluster, audit, rest, "while a pod has a claim")
            say("an XID of one of 56 instances to its taint", spread([*struck(cluster, host, slices, rounds)]))


def stamp(text: str) -> float:
    """Return the time.time() of a line of a pod's log."""
    whole, _, part = text.split()[0].removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")


def registered(cluster: Cluster, slices: Watch, since: float) -> float:
    """Return the seconds from the first registration from a time on to a complete pool."""
    words = (
        "logs",
        "daemonset/gpushim-dra-driver",
        f"--namespace={helm.NAMESPACE}",
        "--container=node",
        "--timestamps",
    )

    def lines() -> list[float]:
        said = cluster.kubectl(*words, check=False).splitlines()
        return [stamp(line) for line in said if REGISTERED in line and stamp(line) >= since]

    cluster.wait_for(lines, "kubelet has registered it")
    began = lines()[0]
    return (
        slices.first(lambda kind, one: kind != "DELETED" and len(one["spec"].get("devices", ())) == 57, began) - began
    )


def restarted(cluster: Cluster, slices: Watch) -> float:
    """Restart kubelet, and return the seconds from the registration to a complete pool."""
    since = time.time()
    cluster.node.stop()
    cluster.node.start()
    return registered(cluster, slices, since)


def running(cluster: Cluster, pods: Watch, rounds: int) -> None:
    """Measure pods with a claim, one after the other; and those without, the same way."""
    for what in ("claim", "nothing"):
        began, written = [], []
        for number in range(rounds + 1):
            name = f"{what}-{number}"
            asked = claims.pod(name, *[name] * (what != "nothing"))
            asked["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "echo; exec sleep 100000"]
            cluster.apply(claims.claim(name), asked)

            def runs(kind: str, one: dict[str, Any], name: str = name) -> bool:
                return (one["metadata"]["name"], one["status"].get("phase")) == (name, "Running")

            pods.first(runs)
            began.append(pods.first(lambda kind, one, name=name: one["metadata"]["name"] == name))  # type: ignore[misc]
            written.append(stamp(logged(cluster, name)))
            claims.remove(cluster, name)
        spent = [after - before for before, after in zip(began, written)][1:]  # the first warms the caches
        say(f"pod with {what}: created until it runs", spread(spent))
    text = kube.fetch(cluster.place, f"http://127.0.0.1:{cluster.node.ports[1]}/metrics").splitlines()
    total, count = (
        sum(float(row.split()[-1]) for row in text if row.startswith(name) and "NodePrepareResources" in row)
        for name in ("dra_grpc_operations_duration_seconds_sum", "dra_grpc_operations_duration_seconds_count")
    )
    say("prepare as kubelet sees it, mean", f"{1000 * total / (count or 1):.1f} ms; {count:.0f} times")


def logged(cluster: Cluster, name: str) -> str:
    """Return what a pod has written, once it has."""
    while not (text := cluster.kubectl("logs", name, "--timestamps")):
        time.sleep(0.1)
    return text


def struck(cluster: Cluster, host: Host, slices: Watch, rounds: int) -> Iterator[float]:
    """Let one MIG instance after the other have an XID; yields the seconds until its taint is in the watch."""
    here, there = (
        Path(host.root, EVENTS),
        rootfs(cluster, driver(cluster)["node"]) / EVENTS,
    )  # NVML in a pod reads the pod's file
    for number in range(rounds):
        gpu = host.gpus[number % 8]
        mig = gpu.mig[number // 8 % 7]
        host.xid(gpu.index, CONTAINED, mig.gi, mig.ci)
        line = here.read_text().splitlines(keepends=True)[-1]
        began = time.time()
        with there.open("a") as file:
            file.write(line)

        def tainted(kind: str, one: dict[str, Any], uuid: str = mig.uuid) -> bool:
            rows = one["spec"].get("devices", ())
            return any(row["attributes"]["uuid"]["string"] == uuid and row.get("taints") for row in rows)

        yield slices.first(tainted, began) - began
        time.sleep(1.0)


def driver(cluster: Cluster) -> dict[str, str]:
    """Return the containers of the driver's halves."""
    (pod,) = cluster.pods("--selector=app.kubernetes.io/component=dra-driver", namespace=helm.NAMESPACE).values()
    return {one["name"]: one["containerID"].rpartition("/")[2] for one in pod["status"]["containerStatuses"]}


def rootfs(cluster: Cluster, container: str) -> Path:
    """Return where a container's root filesystem can be written, which the container itself cannot."""
    assert cluster.containerd.process
    pids = session(cluster.containerd.process.pid)
    paths = (Path(f"/proc/{pid}/root{TASKS}/{container}/rootfs") for pid in pids)
    return next(path for path in paths if path.is_dir())


def resting(cluster: Cluster, audit: Audit, seconds: float, name: str) -> None:
    """Measure what the driver does when nothing happens."""
    time.sleep(SETTLED)
    halves = {half: of_container(container) for half, container in driver(cluster).items()}
    before, began = {half: spent(pids) for half, pids in halves.items()}, time.time()
    time.sleep(seconds)
    asked = audit.requests(began)
    for half, pids in halves.items():
        own, children = ((after - then) * 600 / seconds for after, then in zip(spent(pids), before[half]))
        say(f"{half} half {name}: CPU in 10 min", f"{own:.2f} s; its children {children:.2f} s; {memory(pids[0])}")
    say(f"requests {name}, in {seconds:.0f} s", f"{len(asked) * 60 / seconds:.2f} a minute: {kinds(asked)}")


def spent(pids: list[int]) -> tuple[float, float]:
    """Return the seconds of CPU of the first process, and of the others."""
    return scheduled(pids[0]), sum(map(scheduled, pids[1:]))


if __name__ == "__main__":
    main()
