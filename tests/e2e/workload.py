"""Pods that use GPUs through the scheduler of a real cluster, and what arrives in them.

Out of scope: the cluster (plane.py), what a container must see of a host (expect.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.expect import INSIDE, PROBE, probe
from e2e.kube import NAME
from e2e.plane import Cluster
from fakehost import Host

IMAGE = "docker.io/library/debian:local"


def container(limits: dict[str, int], *command: str) -> dict[str, Any]:
    """Return a container that asks for devices.

    Args:
        limits: how many, by resource.
        command: what it runs; by default it waits for its end.
    """
    return {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [*command] or ["sleep", "100000"],
        "resources": {"limits": {resource: str(number) for resource, number in limits.items()}},
        "volumeMounts": [{"name": "probe", "mountPath": INSIDE}],
    }


def spec(limits: dict[str, int], *command: str, runtime: str = "nvidia") -> dict[str, Any]:
    """Return the specification of a pod of one container, which ends as soon as it is told to."""
    return {
        **({"runtimeClassName": runtime} if runtime else {}),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "containers": [container(limits, *command)],
        "volumes": [{"name": "probe", "hostPath": {"path": str(PROBE)}}],
    }


def create(cluster: Cluster, name: str, limits: dict[str, int], runtime: str = "nvidia") -> None:
    """Ask for a pod that runs until it is removed."""
    said = spec(limits, runtime=runtime)
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": said})


def job(name: str, limits: dict[str, int], number: int) -> dict[str, Any]:
    """Return a job whose pods end at once, one after the other; the first that fails ends it."""
    said = {"completions": number, "parallelism": 1, "backoffLimit": 0, "template": {"spec": spec(limits, "true")}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": said}


def succeeded(cluster: Cluster, name: str) -> int:
    """Return how many pods of a job have done their work; none may have failed."""
    status = cluster.get("job", name)["status"]
    assert not status.get("failed"), cluster.events()
    return int(status.get("succeeded", 0))


def running(cluster: Cluster, *names: str) -> None:
    """Wait until pods run."""

    def all_run() -> bool:
        phases = {name: pod["status"]["phase"] for name, pod in cluster.pods().items()}
        return all(phases.get(name) == "Running" for name in names)

    cluster.wait_for(all_run, f"{', '.join(names)} run")


def look(cluster: Cluster, name: str, host: Host, indices: list[int]) -> str:
    """Run the probe in a pod, which tries every GPU that is not among the indices."""
    return cluster.kubectl("exec", name, "--", *probe(host, indices))


def remove(cluster: Cluster, *names: str) -> None:
    """Remove pods, and wait until they are gone."""
    cluster.kubectl("delete", "pod", *names, "--force", "--grace-period=0", "--ignore-not-found")
    cluster.wait_for(lambda: not any(cluster.node.held(name) for name in names), f"{names} are gone")


@dataclass
class Seen:
    """What the API has said of a node, from the beginning of a block on.

    Attributes:
        log: one JSON object a line: what the node can give.
    """

    log: Path

    def numbers(self, resource: str) -> list[int]:
        """Return how many devices there were, in the order of time."""
        return [int(json.loads(line).get(resource, 0)) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[Seen]:
    """Write down all that the API says of what the node can give, during the block."""
    log = cluster.work / "watched"
    with cluster.watching(log, "node", NAME, r"--output=jsonpath={.status.allocatable}{'\n'}"):
        yield Seen(log)
