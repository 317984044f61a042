"""What an administrator of a cluster with claims is told: metrics, ps, doctor, --check, with both fronts and by one.

One story on one cluster, in the order of the tests, as test_dra.py; its host has the same simulated GPUs.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from e2e import claims, kube, workload
from e2e.deployed import CHART, GPU, serves
from e2e.dradeployed import becomes, driver, node, runs
from e2e.draplane import ALL, VALUES, cluster, host
from e2e.helm import NAMESPACE
from e2e.plane import Cluster
from fakehost import Host

__all__ = ["cluster", "host"]
pytestmark = pytest.mark.skipif("GPUSHIM_LONG" not in os.environ, reason="a minute and a half: tests/long/run dra")
OWN = "gpushim_dra_driver_"


def scraped(cluster: Cluster, pod: dict[str, Any]) -> list[tuple[str, dict[str, str], float]]:
    """Scrape a pod: names, labels and values."""
    text = kube.fetch(cluster.place, f"http://{pod['status']['podIP']}:9400/metrics")
    return [(one.name, one.labels, one.value) for family in parse(text) for one in family.samples]


def one(cluster: Cluster) -> dict[str, Any]:
    """Return the driver's pod."""
    (found,) = driver(cluster).values()
    return dict(found)


def users(cluster: Cluster, pod: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return UUIDs and claims by pod, as a pod's metrics tell them."""
    rows = [
        labels
        for name, labels, _ in scraped(cluster, pod)
        if name == "gpushim_gpu_memory_total_bytes" and labels["pod"]
    ]
    return {row["pod"]: (row["UUID"], row.get("claim", "")) for row in rows}


def doctor(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return the gravest verdict and evidence on the node, by check."""
    found = json.loads(cluster.run("gpushim doctor kubernetes --format=json 2>/dev/null", check=False))
    rows = found["findings"] if isinstance(found, dict) else found
    order = ["ok", "skipped", "warning", "broken"]
    rows.sort(key=lambda row: order.index(row["verdict"]))
    return {row["check"]: (row["verdict"], row["evidence"]) for row in rows}


def test_both_fronts(cluster: Cluster, host: Host) -> None:
    """Metrics have the pods of both."""
    becomes(cluster, lambda: len(claims.devices(cluster)) == 5, "all devices are in slices")
    serves(cluster, {**ALL, GPU: 3})
    cluster.apply(claims.claim("mine"), claims.pod("claiming", "mine"))
    runs(cluster, "claiming")
    workload.create(cluster, "asking", {GPU: 1})
    runs(cluster, "asking")
    (claimed,), (asked,) = claims.held(cluster, "mine"), cluster.node.held("asking")[GPU]
    wanted = {"claiming": (claimed, "mine"), "asking": (asked, "")}
    becomes(cluster, lambda: users(cluster, one(cluster)) == wanted, "metrics have both pods")
    own = {
        (name, labels.get("resource", labels.get("result", ""))): value
        for name, labels, value in scraped(cluster, one(cluster))
    }
    assert own[f"{OWN}registered", ""] == own[f"{OWN}published", ""] == own[f"{OWN}slices", ""] == 1
    assert own[f"{OWN}prepare_seconds_count", "ok"] == own[f"{OWN}claims", ""] == 1


def test_ps_and_check_name_the_claim(cluster: Cluster, host: Host) -> None:
    rows = json.loads(cluster.run("gpushim ps --format=json 2>/dev/null"))
    told = {row["pod"]: [(one["namespace"], one["name"], one["driver"]) for one in row["claims"]] for row in rows}
    assert told["claiming"] == [("default", "mine", claims.DRIVER)]
    assert told["asking"] == []
    assert "default/mine of gpu.nvidia.com" in cluster.run("gpushim ps")
    pod = one(cluster)
    words = ("exec", pod["metadata"]["name"], f"--namespace={NAMESPACE}", f"--container={node(pod)}", "--")
    said = cluster.kubectl(*words, "gpushim-dra-driver", "--check")
    (row,) = [line for line in said.splitlines() if "claim default/mine" in line]
    assert claims.held(cluster, "mine")[0].lower() in row


def test_doctor_finds_both_fronts_well(cluster: Cluster) -> None:
    found = doctor(cluster)
    well = "kubelet has gpushim-dra-driver, beside gpushim-device-plugin, and 5 devices are offered to claims"
    assert found["kubernetes-dra-driver"] == ("ok", well)
    assert found["kubernetes-dra-engine"][0] == found["kubernetes-claims"][0] == "ok"
    assert "default/mine" in found["kubernetes-claims"][1]


def test_claims_alone(cluster: Cluster, host: Host) -> None:
    """The driver's metrics have GPUs now, with the pods of claims that the scheduler made itself."""
    workload.remove(cluster, "asking")
    cluster.helm("upgrade", CHART, "gpushim", {**VALUES, "plugin": {"enabled": False}})
    becomes(cluster, lambda: cluster.allocatable().get(GPU, "0") == "0", "the plugin has gone")
    spec = workload.spec({GPU: 1}, runtime="")
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-claim"}, "spec": spec})
    runs(cluster, "by-claim")
    wanted = {"claiming": claims.held(cluster, "mine"), "by-claim": cluster.node.held("by-claim")[kube.CLAIMS]}

    def told() -> dict[str, list[str]]:
        return {pod: [uuid] for pod, (uuid, _) in users(cluster, one(cluster)).items()}

    becomes(cluster, lambda: told() == wanted, "the driver's metrics have both pods")
    found = doctor(cluster)
    assert found["kubernetes-device-plugin"][0] == "skipped"
    assert found["kubernetes-dra-driver"][0] == "ok"


def test_a_driver_that_is_taken_away_is_missed(cluster: Cluster) -> None:
    """While claims have GPUs, kubelet cannot end their pods; with it again they end."""
    words = ("patch", "daemonset", "gpushim-dra-driver", f"--namespace={NAMESPACE}", "--type=merge")
    for there in (False, True):
        select = {"nowhere": "yes"} if not there else {"nowhere": None}
        patch = {"spec": {"template": {"spec": {"nodeSelector": select}}}}
        cluster.kubectl(*words, f"--patch={json.dumps(patch)}")
        becomes(cluster, lambda: bool(driver(cluster)) is there, "the driver is there, or not")  # noqa: B023
        verdict = "ok" if there else "broken"
        becomes(cluster, lambda: doctor(cluster)["kubernetes-dra-driver"][0] == verdict, verdict)  # noqa: B023
    claims.remove(cluster, "claiming", "by-claim", "mine")
