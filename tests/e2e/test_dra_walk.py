"""Both fronts on one node, the drivers, kubelet and GPUs changed at random: no GPU is given twice.

After each step all containers are looked at from inside (reach.py). $GPUSHIM_DRA_WALK_STEPS says how many steps,
$GPUSHIM_DRA_WALK_SEED repeats a walk as far as a machine repeats itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e import claims, workload
from e2e.allocated import built
from e2e.controlplane import served
from e2e.deployed import BIG, GPU, IMAGE, SMALL, serves
from e2e.dradeployed import FRONTS, becomes, install, log
from e2e.helm import NAMESPACE, Values
from e2e.plane import Cluster
from e2e.reach import Pods
from fakehost import Host
from gpuplugin.allocation.kubelet_view import QUIET

RECORD = "/var/lib/gpushim/device-plugin/allocations.json"
DAMAGE = f"printf '{{' >{RECORD}"
SWEEP = "rm -f /var/run/cdi/*"
STEPS = int(os.environ.get("GPUSHIM_DRA_WALK_STEPS", "25"))
SEED = os.environ.get("GPUSHIM_DRA_WALK_SEED") or str(time.time_ns())
PODS = 5  # at most
ALL = {GPU: 2, BIG: 1, SMALL: 1}
VALUES: Values = {"image": IMAGE, "settings": {"mig-strategy": "mixed"}, "dra": {"enabled": True}}
REFUSED = ("cannot have", "UnexpectedAdmissionError", "Allocate failed", "FailedPrepareDynamicResources")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    return built(tmp_path_factory.mktemp("drawalk"), 3, mig={0: ["3g.20gb", "1g.5gb"]})


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with the device plugin and the DRA driver."""
    install(cluster, VALUES)
    serves(cluster, ALL)
    return cluster


class Walk:
    """A walk: what there is, and what has become of it.

    Args:
        cluster: with both fronts.
        inside: what looks into containers.
        chance: what decides.
    """

    def __init__(self, cluster: Cluster, inside: Pods, chance: random.Random) -> None:
        self.cluster, self.inside, self.chance = cluster, inside, chance
        self.names = (f"p{number}" for number in itertools.count())
        self.made: list[str] = []
        self.static: list[str] = []  # pods of kubelet's own
        self.lost = -1

    def step(self) -> str:
        """Do one thing; say which."""
        things = {**self.always(), **(self.with_kubelet() if self.cluster.node.runs else self.without())}
        what = self.chance.choice(sorted(things))
        more = things[what]()
        time.sleep(self.chance.choice((0, self.chance.random())))
        self.settle()
        self.inside.look()
        return f"{what} {more or ''}"

    def always(self) -> dict[str, Callable[[], object]]:
        """List what can be done at any time; what is there more than once is done more often."""
        found: dict[str, Callable[[], object]] = {"CDI specs are swept": lambda: self.cluster.run(SWEEP)}
        if self.made:
            found["pod ends by force"] = lambda: self.end(self.chance.choice(self.made), force=True)
        if len(self.made) < PODS:
            for number in ("one", "two", "three"):
                found[f"pod by claim {number}"] = self.claim
                found[f"pod by plugin {number}"] = self.ask
            found["pod by plugin, with an init container"] = self.ask_with_init
        return found

    def with_kubelet(self) -> dict[str, Callable[[], object]]:
        """List what can be done while kubelet runs."""
        found: dict[str, Callable[[], object]] = {
            "kubelet again": self.again,
            "kubelet goes": lambda: self.cluster.node.stop(signal.SIGKILL),
            "GPU lost or found": self.lose,
            "the fronts again": self.restart,
            "the fronts again, another": self.restart,
            "the record is damaged": lambda: self.cluster.run(DAMAGE),
        }
        if self.static:
            found["static pod ends"] = self.end_static
        elif len(self.made) < PODS:
            found["static pod"] = self.make_static
        if self.made:
            found.update(
                dict.fromkeys(("pod ends", "pod ends, another"), lambda: self.end(self.chance.choice(self.made)))
            )
        return found

    def without(self) -> dict[str, Callable[[], object]]:
        """List what can be done while it is away."""
        return dict.fromkeys(("kubelet comes", "kubelet is there", "kubelet starts"), self.cluster.node.start)

    def claim(self) -> str:
        """Ask for a pod with a claim."""
        name, kind = next(self.names), self.chance.choice((claims.DRIVER, claims.DRIVER, "mig.nvidia.com"))
        number = self.chance.choice((1, 1, 2))
        self.cluster.apply(
            claims.claim(name, claims.request(device_class=kind, count=number)), claims.pod(name, name)
        )
        self.made.append(name)
        return f"{name} {number} of {kind}"

    def ask(self) -> str:
        """Ask for a pod with something of the device plugin's."""
        name, resource = next(self.names), self.chance.choice((GPU, GPU, BIG, SMALL))
        number = self.chance.choice((1, 1, 2)) if resource == GPU else 1
        workload.create(self.cluster, name, {resource: number})
        self.made.append(name)
        return f"{name} {number} of {resource}"

    def ask_with_init(self) -> str:
        """Ask for a pod whose init container has its GPU first."""
        name, spec = next(self.names), workload.spec({GPU: 1})
        spec["initContainers"] = [{**workload.container({GPU: 1}, "true"), "name": "init"}]
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        self.made.append(name)
        return name

    def make_static(self) -> str:
        """Ask kubelet for a pod without an API server; one that is refused is removed."""
        name, resource = next(self.names), self.chance.choice((GPU, SMALL))
        if self.cluster.node.pod(name, {resource: 1}, spec={"runtimeClassName": "nvidia"}).container:
            self.static.append(name)
        else:
            self.cluster.node.remove(name)
        return f"{name} 1 of {resource}"

    def end_static(self) -> str:
        """Remove the static pod."""
        name = self.static.pop()
        self.inside.end(name)
        return name

    def end(self, *names: str, force: bool = False) -> str:
        """Remove pods and their claims; without kubelet, or by force, nobody waits for that."""
        self.made = [name for name in self.made if name not in names]
        words = ("--force",) if force else ()
        self.cluster.kubectl(
            "delete", "pod", *names, "--ignore-not-found", "--wait=false", "--grace-period=0", *words
        )
        self.cluster.kubectl("delete", "resourceclaim", *names, "--ignore-not-found", "--wait=false")
        if self.cluster.node.runs and force:
            # kubelet lets the next pod have a device of the plugin's at once, for some seconds beside this one.
            self.cluster.wait_for(lambda: not self.inside.left(*names), f"{names} run no more")
        if self.cluster.node.runs and not force:
            self.cluster.wait_for(lambda: not claims.left(self.cluster, *names), f"{names} are gone")
        return " ".join(names)

    def again(self) -> None:
        """Kill kubelet, and start it."""
        self.cluster.node.stop(signal.SIGKILL)
        self.cluster.node.start()

    def restart(self) -> None:
        """Kill both fronts, whose DaemonSet makes another pod."""
        words = ("delete", "pod", FRONTS, f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
        self.cluster.kubectl(*words)

    def lose(self) -> str:
        """Lose a GPU, or find the one that is lost."""
        host = self.inside.host
        if self.lost < 0:
            self.lost = self.chance.choice(range(len(host.gpus)))
            host.lose(self.lost)
        else:
            host.find(self.lost)
            self.lost = -1
        self.cluster.run("gpushim refresh --force", check=False)
        return f"{self.lost}"

    def settle(self) -> None:
        """Wait until each pod runs or does not for now, and remove these."""
        if not self.cluster.node.runs:
            return
        waiting: dict[str, str] = {}

        def settled() -> bool:
            there = self.cluster.pods()
            waiting.clear()
            waiting.update({name: self.why(there[name]) for name in self.made if phase(there, name) != "Running"})
            return all(waiting.values())

        self.cluster.wait_for(settled, f"{self.made} run or are refused")
        if waiting:
            print(f"  refused: {waiting}")
            self.end(*waiting)

    def why(self, pod: dict[str, Any]) -> str:
        """Return why a pod does not run; "" if it may yet."""
        status = pod["status"]
        for row in status.get("conditions", ()):
            if (row["type"], row.get("reason")) == ("PodScheduled", "Unschedulable"):
                return str(row.get("message"))
        if status["phase"] == "Failed":
            return str(status.get("message"))
        events = claims.why(self.cluster, pod["metadata"]["name"])
        return next((line for line in events.splitlines() if any(word in line for word in REFUSED)), "")

    def finish(self) -> None:
        """End all pods; both fronts offer all again."""
        if not self.cluster.node.runs:
            self.cluster.node.start()
        if self.lost >= 0:
            self.lose()
        if self.made:
            self.end(*self.made)
        if self.static:
            self.end_static()
        serves(self.cluster, ALL)
        host = self.inside.host
        wanted = {gpu.uuid for gpu in host.gpus[1:]} | {mig.uuid for mig in host.gpus[0].mig}
        becomes(self.cluster, lambda: claims.devices(self.cluster).keys() == wanted, "all is in slices")
        becomes(self.cluster, lambda: not claims.taints(self.cluster), "nothing is tainted", 120)


def phase(pods: dict[str, dict[str, Any]], name: str) -> str:
    return str(pods[name]["status"]["phase"])


def test_what_an_init_container_has_is_no_claim_s(cluster: Cluster, host: Host) -> None:
    """Of the device plugin; kubelet (pod-resources) lists what the usual container is to have alone."""
    workload.create(cluster, "beside", {}, runtime="")
    workload.running(cluster, "beside")
    spec = workload.spec({GPU: 1}, runtime="")
    (box,) = spec["containers"]
    spec["initContainers"] = [{**box, "name": "init", "resources": {"limits": {GPU: "2"}}}]  # works for long
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "init"}, "spec": spec})
    becomes(cluster, lambda: len(claims.taints(cluster)) == 2, "two GPUs are given out")
    before = claims.taints(cluster)
    time.sleep(QUIET + 3)  # what nobody has who is listed would be free then
    assert len(cluster.node.held("init")[GPU]) == 1
    assert claims.taints(cluster) == before
    workload.remove(cluster, "init")
    becomes(cluster, lambda: not claims.taints(cluster), "they are free when the pod has ended", 60)
    workload.remove(cluster, "beside")


def test_no_gpu_is_given_twice(cluster: Cluster, host: Host, tmp_path: Path) -> None:
    print(f"GPUSHIM_DRA_WALK_SEED={SEED}")
    walk = Walk(cluster, Pods(cluster.node, host, tmp_path / "nodes"), random.Random(SEED))
    try:
        for number in range(STEPS):
            print(f"{time.strftime('%T')} {number}: {walk.step()}; {walk.made}", flush=True)
        began = time.monotonic()
        walk.finish()
        print(f"{time.strftime('%T')} all is offered after {time.monotonic() - began:.1f} s", flush=True)
        print(f"{len(walk.inside.parts)} containers were seen")
    except AssertionError:
        print(log(cluster)[-6000:], log(cluster, "cluster")[-3000:], sep="\n--\n")
        raise
    assert "Traceback" not in log(cluster) + log(cluster, "cluster")


def test_what_a_pod_has_stays_its_own_with_another_kubelet_and_no_api_server(cluster: Cluster) -> None:
    """kubelet lists static pods alone then, until the API server is back: the owner runs on all the while.

    The last here: the scheduler takes a while to hear of slices again.
    """
    workload.create(cluster, "owner", {GPU: 1}, runtime="")
    workload.running(cluster, "owner")
    becomes(cluster, lambda: "pod default/owner" in cluster.run(f"cat {RECORD}"), "whose it is, is known")
    before = claims.taints(cluster)
    cluster.node.stop(signal.SIGKILL)
    cluster.server.stop(signal.SIGKILL)
    cluster.node.start()
    time.sleep(2 * QUIET + 3)  # it is young for so long; what nobody has who is listed would be free then
    assert "owner" not in cluster.node.everybody()
    assert "pod default/owner" in cluster.run(f"cat {RECORD}")
    cluster.server.start()
    served(cluster.place, cluster.work)
    becomes(cluster, lambda: claims.taints(cluster) == before, "slices are there again, and have it")
    workload.remove(cluster, "owner")
    becomes(cluster, lambda: not claims.taints(cluster), "it is free when the pod has ended", 60)
