"""The chart's DRA driver in a cluster: installed, killed, away, or two of it; and what slices have been meanwhile.

Out of scope: claims (claims.py), the driver as a process of its own (dranode.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from e2e.claims import DRIVER
from e2e.deployed import CHART, IMAGE, rolled_out
from e2e.helm import NAMESPACE, Values
from e2e.kube import NAME
from e2e.leftovers import groups
from e2e.plane import Cluster
from fakehost import Host

DAEMON = "gpushim-dra-driver"
ALONE: Values = {"image": IMAGE, "plugin": {"enabled": False}, "dra": {"enabled": True}}  # no device plugin beside it
AWAY = {"gpushim-test/away": "true"}  # what no node has
FRONTS = "--selector=app.kubernetes.io/component in (device-plugin, dra-driver)"


def install(cluster: Cluster, values: Values, patch: dict[str, Any] | None = None) -> None:
    """Install the chart, and patch what the driver's pods are made of."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.helm("install", CHART, "gpushim", values)
    if patch:
        change(cluster, patch)
    rolled_out(cluster)


def kernel(host: Host) -> dict[str, Any]:
    """Return a patch by which the driver sees what the simulated host's kernel tells, as it sees a real one's."""
    folders = {name: f"{host.root}/{name}" for name in ("proc", "sys")}
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in folders.items()]
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    return {"containers": [{"name": "node", "volumeMounts": mounts}], "volumes": volumes}


def change(cluster: Cluster, spec: dict[str, Any]) -> None:
    """Patch what the driver's pods are made of."""
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    cluster.kubectl("patch", "daemonset", DAEMON, f"--namespace={NAMESPACE}", f"--patch={patch}")


def driver(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the pods that serve claims, by name, beside the device plugin or alone."""
    return cluster.pods(FRONTS, namespace=NAMESPACE)


def node(pod: dict[str, Any]) -> str:
    """Return the name of the container with the half on the node."""
    (name,) = (box["name"] for box in pod["spec"]["containers"] if box["name"] != "cluster")
    return str(name)


def log(cluster: Cluster, container: str = "node", pod: str = "") -> str:
    """Return what a container of the driver has said: node for the half there, or cluster."""
    pods = {pod: cluster.pods(namespace=NAMESPACE)[pod]} if pod else driver(cluster)
    boxes = {name: node(one) if container == "node" else container for name, one in pods.items()}
    words = ("logs", f"--namespace={NAMESPACE}")
    return "".join(cluster.kubectl(*words, name, f"--container={box}", check=False) for name, box in boxes.items())


def becomes(cluster: Cluster, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until something is so, and say what the driver said if it does not become so."""
    try:
        cluster.wait_for(condition, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log(cluster)}\n{log(cluster, 'cluster')}") from None


def runs(cluster: Cluster, *names: str) -> None:
    """Wait until pods run, and are not being deleted."""

    def run() -> bool:
        there = cluster.pods()
        return all(
            name in there
            and there[name]["status"]["phase"] == "Running"
            and "deletionTimestamp" not in there[name]["metadata"]
            for name in names
        )

    becomes(cluster, run, f"{names} run")


def processes(cluster: Cluster, pod: dict[str, Any], *containers: str) -> list[int]:
    """List the processes of a pod's containers, as this machine numbers them."""
    boxes = pod["status"].get("containerStatuses", ())
    ids = {box["containerID"].rpartition("/")[2] for box in boxes if not containers or box["name"] in containers}
    top = Path("/sys/fs/cgroup/devices", cluster.node.engine.state.name)
    return [pid for group, pids in groups(top) if os.path.basename(group) in ids for pid in pids]


def rootfs(cluster: Cluster, pod: dict[str, Any], container: str) -> str:
    """Return where the node sees the files of a pod's container, and may write to them."""
    (found,) = (box["containerID"] for box in pod["status"]["containerStatuses"] if box["name"] == container)
    return f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{found.rpartition('/')[2]}/rootfs"


def kill(cluster: Cluster, pod: dict[str, Any], delete: Callable[[], object]) -> None:
    """Kill a driver while its pod is being deleted, so that it ends without a last word and is not restarted."""
    pids = processes(cluster, pod)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    delete()
    name = pod["metadata"]["name"]

    def deleted() -> bool:
        there = cluster.get("pod", name, f"--namespace={NAMESPACE}")
        return not there or "deletionTimestamp" in there["metadata"]

    cluster.wait_for(deleted, f"{name} is to be deleted")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gone = ("wait", "--for=delete", f"pod/{name}", f"--namespace={NAMESPACE}", "--timeout=60s")
    cluster.kubectl(*gone)


@contextlib.contextmanager
def away(cluster: Cluster) -> Iterator[None]:
    """Have no driver of the DaemonSet's on the node during the block: the one that ran is killed."""
    (pod,) = driver(cluster).values()
    kill(cluster, pod, lambda: change(cluster, {"nodeSelector": AWAY}))
    yield
    change(cluster, {"nodeSelector": dict.fromkeys(AWAY)})
    rolled_out(cluster)


def second(cluster: Cluster, name: str, *flags: str) -> dict[str, Any]:
    """Run another instance of the driver, as a pod of its own; return the pod once kubelet has registered it."""
    spec = cluster.get("daemonset", DAEMON, f"--namespace={NAMESPACE}")["spec"]["template"]["spec"]
    (node,) = (box for box in spec["containers"] if box["name"] == "node")
    node["args"] = [*node["args"], *flags]
    metadata = {"name": name, "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": NAME}})
    registered = f"kubelet has registered the DRA driver {DRIVER}"
    cluster.wait_for(lambda: registered in log(cluster, pod=name), f"{name} is registered")
    return cluster.pods(namespace=NAMESPACE)[name]


@contextlib.contextmanager
def unwiped(cluster: Cluster) -> Iterator[None]:
    """Watch slices during the block; none may go, or have another generation."""
    seen = cluster.work / "slices"
    what = r"{.type} {.object.metadata.name} {.object.spec.pool.generation}{'\n'}"
    with cluster.watching(seen, "resourceslices", "--output-watch-events", f"--output=jsonpath={what}"):
        before = {line.split()[2] for line in seen.read_text().splitlines()}
        yield
    rows = [line.split() for line in seen.read_text().splitlines()]
    assert {kind for kind, *_ in rows} <= {"ADDED", "MODIFIED"}, rows
    assert {generation for *_, generation in rows} == before, rows


def versions(slices: list[dict[str, Any]]) -> list[str]:
    """Return what tells whether slices were written again."""
    return [one["metadata"]["resourceVersion"] for one in slices]
