"""What becomes of claims while the DRA driver or kubelet is away, and over a boot of the node.

One story on one cluster, in the order of the tests, without a device plugin but at the end. Each container is looked
into.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from e2e import claims
from e2e.allocated import built
from e2e.boots import boot
from e2e.claims import force, only
from e2e.deployed import CHART, GPU, IMAGE, serves
from e2e.dradeployed import ALONE, away, becomes, install, runs
from e2e.kube import CLAIMS
from e2e.plane import Cluster
from e2e.reach import Pods
from fakehost import Host
from gpuplugin.allocation.kubelet_view import QUIET
from gpushim.containers import kubelet

ABSENT = 60.0 if "GPUSHIM_LONG" in os.environ else 1.0  # seconds; after 30 s kubelet takes the slices away
SWEPT = 45.0  # seconds; a look each 2 s, a refresh, and kubelet's second try
GIVEN_BACK = 120.0  # within a minute, and kubelet asks again after 15 s


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Four GPUs."""
    return built(tmp_path_factory.mktemp("away"), 4)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the DRA driver, and a pod that has a claim and comes back when it ends."""
    install(cluster, ALONE)
    cluster.apply(claims.claim("stays"), claims.pod("stays", "stays", restartPolicy="Always"))
    runs(cluster, "stays")
    return cluster


@pytest.fixture(scope="module")
def inside(cluster: Cluster, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Pods:
    return Pods(cluster.node, host, tmp_path_factory.mktemp("reach") / "nodes")


def box(cluster: Cluster, name: str) -> tuple[str, bool]:
    """Return a pod's container, and whether it runs."""
    (found,) = cluster.pods()[name]["status"]["containerStatuses"]
    return found["containerID"], "running" in found["state"]


def test_kubelet_is_away_when_a_pod_is_deleted_by_force(cluster: Cluster, inside: Pods) -> None:
    """Its claim is gone at once, and the scheduler gives the GPU to another: who waits, is told why, and gets it.

    That lasts a minute (the last but one test).
    """
    cluster.apply(claims.claim("forced"), claims.pod("forced", "forced"))
    runs(cluster, "forced")
    inside.look()
    (uuid,) = claims.held(cluster, "forced")
    cluster.node.stop(signal.SIGKILL)
    force(cluster, "forced")
    cluster.wait_for(lambda: not claims.left(cluster, "forced"), "the claim is gone")
    cluster.apply(claims.claim("heir", only(uuid)), claims.pod("heir", "heir"))
    time.sleep(ABSENT)
    cluster.node.start()
    sentence = f"claim default/heir cannot have {uuid} yet: claim default/forced of {claims.DRIVER} has it"
    becomes(cluster, lambda: sentence in claims.why(cluster, "heir"), "an event says who has it")
    inside.look()


def test_the_driver_is_away_when_pods_go_and_come(cluster: Cluster, inside: Pods) -> None:
    """What was deleted, by force or not, ends when it is back, and who waits gets the GPUs of both."""
    before = claims.devices(cluster)
    cluster.apply(*(one for name in ("gentle", "rude") for one in (claims.claim(name), claims.pod(name, name))))
    runs(cluster, "gentle", "rude")
    inside.look()
    with away(cluster):
        force(cluster, "rude")
        cluster.kubectl("delete", "pod,resourceclaim", "gentle", "--wait=false")
        cluster.apply(claims.claim("next", claims.request(count=2)), claims.pod("next", "next"))
        time.sleep(ABSENT)
        inside.look()
        assert cluster.pods()["next"]["status"]["phase"] == "Pending"
    runs(cluster, "next")
    inside.look()
    assert not claims.left(cluster, "gentle", "rude")
    becomes(cluster, lambda: claims.devices(cluster) == before, "the slices are as before")
    claims.remove(cluster, "next")


def test_the_heir_gets_it(cluster: Cluster, inside: Pods) -> None:
    becomes(cluster, lambda: cluster.pods()["heir"]["status"]["phase"] == "Running", "the heir runs", GIVEN_BACK)
    inside.look()
    claims.remove(cluster, "heir")


def test_a_sweep_of_the_cdi_specs(cluster: Cluster, inside: Pods) -> None:
    """The keeper writes the spec again; a container that starts just then waits for kubelet's next try at most."""
    cluster.run("rm -f /var/run/cdi/*")
    began = time.monotonic()
    cluster.apply(claims.claim("swept"), claims.pod("swept", "swept"))
    becomes(cluster, lambda: cluster.run("ls /var/run/cdi") == "nvidia.com-gpu.json\n", "the spec is back", SWEPT)
    runs(cluster, "swept")
    assert time.monotonic() - began < SWEPT
    inside.look()
    claims.remove(cluster, "swept")


def test_a_boot(cluster: Cluster, inside: Pods) -> None:
    """The container is back by itself, with the same GPU, of which nobody was given anything meanwhile."""
    had, (before, _) = cluster.node.held("stays")[CLAIMS], box(cluster, "stays")
    boot(cluster)
    cluster.apply(claims.claim("others", claims.request(count=3)), claims.pod("others", "others"))
    becomes(
        cluster, lambda: box(cluster, "stays")[1] and box(cluster, "stays")[0] != before, "it is back", GIVEN_BACK
    )
    assert cluster.node.held("stays")[CLAIMS] == had
    runs(cluster, "others")
    assert len(inside.look()) == 2
    assert not {*had} & {*cluster.node.held("others")[CLAIMS]}
    claims.remove(cluster, "others")


def test_what_an_init_container_has_by_a_claim_is_not_the_device_plugins(cluster: Cluster) -> None:
    """Which comes in the driver's place; kubelet (pod-resources) does not list init containers."""
    pod = claims.pod("first", "first")
    (box,) = pod["spec"]["containers"]
    pod["spec"]["initContainers"] = [{**box, "name": "init"}]  # works for long
    del box["resources"]
    cluster.apply(claims.claim("first"), pod)

    def works() -> bool:
        boxes = cluster.pods()["first"]["status"].get("initContainerStatuses", ())
        return any("running" in one["state"] for one in boxes)

    becomes(cluster, works, "the init container works")
    assert "first" not in cluster.node.everybody()
    assert kubelet.claim_uids(str(cluster.node.kubelet_dir)) >= {
        cluster.get("resourceclaim", "first")["metadata"]["uid"]
    }
    cluster.helm("upgrade", CHART, "gpushim", {"image": IMAGE})
    serves(cluster, {GPU: 2})
    time.sleep(QUIET + 3)  # then the plugin takes what kubelet does not list for free
    assert cluster.allocatable()[GPU] == "2"
