"""An upgrade of the chart on many nodes, one of which is down: API server, controller and scheduler are real.

The nodes are objects, and the test is all kubelets. Out of scope: what pods do (test_several_nodes.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import charts
from e2e.apiserver import Api, api
from e2e.charts import NODE, PLUGIN
from e2e.controlplane import daemon
from e2e.leftovers import until
from e2e.plane import CONTROLLERS, SCHEDULER

NODES, DOWN = [f"node-{number}" for number in range(8)], "node-0"
SECONDS = 40.0
SOME = "--controllers=daemonset-controller,serviceaccount-controller"
COMPONENTS = ("device-plugin", "node")
OLD, NEW = {"image": {"tag": "old"}}, {"image": {"tag": "new"}, "node": {"maxUnavailable": 2}}  # that node counts


def node(name: str) -> dict[str, Any]:
    """Return a node that is ready, and has gpushim."""
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    labels = {"kubernetes.io/os": "linux", "gpushim/installed": "true"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": ready}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def ask(server: Api, *words: str, objects: list[dict[str, Any]] | None = None) -> str:
    """Run kubectl in the chart's namespace; return what it prints."""
    done = server.kubectl(*words, "--namespace=gpushim", objects=objects)
    assert not done.returncode, done.stderr
    return done.stdout


def pods(server: Api) -> list[dict[str, Any]]:
    """Return the chart's pods."""
    found: list[dict[str, Any]] = json.loads(ask(server, "get", "pods", "--output=json"))["items"]
    return found


def served(server: Api, *down: str) -> list[dict[str, Any]]:
    """Do what kubelets of nodes do that are not down: pods become ready, and those that are to end are gone.

    Returns:
        the pods as they were before.
    """
    found = pods(server)
    mine = [pod for pod in found if pod["spec"].get("nodeName") not in (None, *down)]
    gone = [pod["metadata"]["name"] for pod in mine if "deletionTimestamp" in pod["metadata"]]
    begun = [pod for pod in mine if pod["metadata"]["name"] not in gone and not is_ready(pod)]
    for pod in begun:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    if begun:
        ask(server, "replace", "--subresource=status", "--filename=-", objects=begun)
    if gone:
        ask(server, "delete", "pods", "--force", "--grace-period=0", *gone)
    return found


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether a pod is ready."""
    return any(row["type"] == "Ready" and row["status"] == "True" for row in pod["status"].get("conditions", ()))


def updated(found: list[dict[str, Any]], component: str) -> set[str]:
    """Return the nodes on which a component's pod of the new image is ready."""
    rows = (pod for pod in found if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component)
    return {
        pod["spec"]["nodeName"]
        for pod in rows
        if is_ready(pod) and pod["spec"]["containers"][0]["image"].endswith(":new")
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    """An API server with nodes on which the chart's pods are ready."""
    with api() as found, contextlib.ExitStack() as stack:
        for command in (f"{CONTROLLERS} {SOME}", SCHEDULER):
            stack.enter_context(daemon(found.place, found.work, command))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushim"}}
        ask(found, "create", "--filename=-", objects=[namespace, *map(node, NODES)])
        ask(found, "taint", "nodes", "--all", "node.kubernetes.io/not-ready-")  # which each gets when it is made
        ask(found, "apply", "--filename=-", objects=[*charts.objects(OLD).values()])
        begun = until(lambda: sum(map(is_ready, served(found))) == 2 * len(NODES), SECONDS, 0.3)
        assert begun, pods(found)
        yield found


def test_a_node_that_is_down_stops_no_update(server: Api) -> None:
    """Its pods are not ready, as the cluster's controller of nodes would say."""
    lost = [pod for pod in pods(server) if pod["spec"]["nodeName"] == DOWN]
    for pod in lost:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    ask(server, "replace", "--subresource=status", "--filename=-", objects=lost)
    rendered = charts.objects(NEW)
    ask(server, "apply", "--filename=-", objects=[rendered[NODE], rendered[PLUGIN]])
    others = {*NODES} - {DOWN}

    def done() -> bool:
        found = served(server, DOWN)
        return all(updated(found, component) == others for component in COMPONENTS)

    assert until(done, SECONDS, 0.3), {name: sorted(updated(pods(server), name)) for name in COMPONENTS}
