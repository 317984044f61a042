"""A walk at random in a cluster: pods come and go, while GPUs, the fronts, kubelet and the record are changed.

Out of scope: which steps a seed chooses, and how many (the tests).
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from e2e import claims, workload
from e2e.deployed import BIG, GPU, SMALL, serves
from e2e.dradeployed import FRONTS, becomes
from e2e.helm import NAMESPACE
from e2e.plane import SECONDS, Cluster
from e2e.reach import Pods

RECORD = "/var/lib/gpushim/device-plugin/allocations.json"
DAMAGE = f"printf '{{' >{RECORD}"
SWEEP = "rm -f /var/run/cdi/*"
ALL = {GPU: 2, BIG: 1, SMALL: 1}
REFUSED = ("cannot have", "UnexpectedAdmissionError", "Allocate failed", "FailedPrepareDynamicResources")


class Walk:
    """A walk: what there is, and what has become of it.

    Args:
        cluster: with both fronts.
        inside: what looks into containers.
        chance: what decides.

    Attributes:
        most: pods that there are at a time.
    """

    most = 5

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
        return {**found, **(self.pods() if self.has_room() else {})}

    def pods(self) -> dict[str, Callable[[], object]]:
        """List the pods that can be asked for."""
        found: dict[str, Callable[[], object]] = {"pod by plugin, with an init container": self.ask_with_init}
        for number in ("one", "two", "three"):
            found[f"pod by claim {number}"] = self.claim
            found[f"pod by plugin {number}"] = self.ask
        return found

    def has_room(self) -> bool:
        """Return whether there may be another pod."""
        return len(self.made) < self.most

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
        elif self.has_room():
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

        # A new kubelet gives back a claim of a pod that was deleted by force without it up to a minute later.
        self.cluster.wait_for(settled, f"{self.made} run or are refused", 2 * SECONDS)
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
