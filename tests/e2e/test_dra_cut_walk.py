"""Claims for what GPUs are cut into, or for parts, all changed at random: who knows of it agrees, nothing is left.

A real cluster, on whose node the package's programs run. After each step all containers are looked at from inside
(reach.py), and NVML's instances, slices, CDI specs, the record, MPS's directories and pods are compared.
$GPUSHIM_CUT_WALK_STEPS says how many steps, $GPUSHIM_CUT_WALK_SEED repeats a walk as far as a machine repeats itself.
Out of scope: the device plugin beside claims (test_dra_walk.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e import claims, trees
from e2e.allocated import built
from e2e.clusterwalk import Walk
from e2e.cuts import Cuts, published
from e2e.engines import Daemon
from e2e.leftovers import until
from e2e.packaged import Packaged, packaged
from e2e.reach import Part, Pods
from fakehost import Host
from sample import turn

pytestmark = pytest.mark.skipif(
    not (turn(4, 1) or "GPUSHIM_CUT_WALK_STEPS" in os.environ),
    reason="a minute, with every fourth commit; GPUSHIM_LONG=1",
)
STEPS = int(os.environ.get("GPUSHIM_CUT_WALK_STEPS", "8"))
SEED = os.environ.get("GPUSHIM_CUT_WALK_SEED") or str(time.time_ns())
SECONDS = 120.0  # kubelet takes back what was deleted by force while it was away after 60
CUT, LAID, SLICED, SERVED, WHOLE = (0, 1), 2, 3, 4, (5, 6)  # GPUs: on demand, by file, in parts by two ways, whole
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
LAYOUTS: dict[str, dict[str, int]] = {
    "small": {"1g.5gb": 7},
    "two": {"3g.20gb": 2},
    "mixed": {"3g.20gb": 1, "1g.5gb": 1},
}
SICK = ("is unhealthy:", "this node no longer has", "cannot be used:", "GPU is lost")
# What claims may leave; the arguments: where the driver keeps what GPUs are set to, and one of which that stays.
LEFT = """
ls -d /run/gpushim/mps/claim-* /var/run/cdi/gpushim-claim-* 2>/dev/null
for process in /proc/[0-9]*; do
  tr '\\0' ' ' <$process/cmdline | grep -ao '[-]-mps claim-.*\\|[p]artition_child'
done 2>/dev/null
cd {} && grep -v '^0$' compute-mode-* time-slice-* 2>/dev/null | grep -v {}
"""
SETTINGS = f"""on-demand = {json.dumps([str(index) for index in CUT])}
config-file = "/etc/gpushim/device-plugin.json"
"""
SHARING = {
    "timeSlicing": {"resources": [{"name": "gpu", "devices": [SLICED], "replicas": 4}]},
    "mps": {"resources": [{"name": "gpu", "devices": [SERVED], "rename": "gpu.mps", "replicas": 1}]},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """GPUs that can be divided, the first of which are cut on demand."""
    mig: dict[int, list[str]] = {**{index: [] for index in CUT}, LAID: ["3g.20gb", "1g.5gb"]}
    return built(tmp_path_factory.mktemp("cutwalk"), 7, mig=mig)


@pytest.fixture(scope="module")
def node(host: Host, debian_image: Path, busybox_tree: Path) -> Iterator[Packaged]:
    """A cluster whose node has the package, claims alone, groups of GPUs, and layouts."""
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    with packaged(host.root, SETTINGS, debian_image, pause) as found:
        found.cluster.write("/etc/gpushim/device-plugin.json", json.dumps({"version": "v1", "sharing": SHARING}))
        rows = {kind: [{"devices": [LAID], "mig-enabled": True, "mig-devices": row}] for kind, row in LAYOUTS.items()}
        found.cluster.write("/etc/gpushim/mig.yaml", json.dumps({"version": "v1", "mig-configs": rows}))
        assert until(lambda: bool(published(found.cluster)), SECONDS), found.log
        yield found


class Containers(Pods):
    """Containers, some of which have instances that NVML has made, and some a GPU beside others."""

    def look(self) -> dict[str, list[Part]]:
        self.host.adopt()
        return super().look()

    def _meet(self, name: str) -> None:
        super()._meet(name)
        shared = {self.host.gpus[index].minor for index in (SLICED, SERVED)}
        rows = self.parts.get(name, [])
        self.parts[name] = [replace(part, way="parts") if part.minor in shared else part for part in rows]


class CutWalk(Walk):
    """A walk with GPUs that are cut and shared.

    Args:
        node: the package's programs.
        inside: what looks into containers.
        chance: what decides.
    """

    most = 6

    def __init__(self, node: Packaged, inside: Pods, chance: random.Random) -> None:
        super().__init__(node.cluster, inside, chance)
        self.node, self.host = node, inside.host
        self.cuts = Cuts(node, inside.host, CUT)
        self.uuids = self.cuts.uuids

    def step(self) -> str:
        said = super().step()
        self.agree()
        return said

    def pods(self) -> dict[str, Callable[[], object]]:
        return {f"pod by claim {number}": self.claim for number in ("one", "two", "three", "four", "five", "six")}

    def with_kubelet(self) -> dict[str, Callable[[], object]]:
        found: dict[str, Callable[[], object]] = {
            "kubelet again": self.again,
            "kubelet goes": lambda: self.cluster.node.stop(signal.SIGKILL),
            "GPU lost or found": self.lose,
            "GPU errs": self.err,
            "the driver again": self.restart,
            "what lists GPUs again": lambda: self.kill(self.node.listing),
            "the half at the API server again": lambda: self.kill(self.node.other),
            "the API server pauses": self.pause,
            "made by hand": self.make,
            "layout": self.lay,
            "layout, another": self.lay,
        }
        if self.has_room():
            found["pod by claim, and the driver again"] = self.strike
            found["pod by claim, and both again"] = lambda: self.strike(kubelet=True)
        if self.made:
            found["pod ends"] = found["pod ends, another"] = lambda: self.end(self.chance.choice(self.made))
            found["pod ends, and the driver again"] = self.cut_short
        return found

    def kinds(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what may be asked for: members of a claim's specification."""
        sharing: dict[str, dict[str, Any]] = {
            "MPS": {"strategy": "MPS"},
            "slice": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
        }
        return {
            "GPUs": lambda: {"requests": [claims.request(count=self.chance.choice((1, 1, 2)))]},
            "any instance": lambda: {"requests": [claims.request(device_class="mig.nvidia.com")]},
            **{f"profile {number}": lambda: {"requests": [self.profile()]} for number in range(4)},
            "profiles": lambda: {"requests": [self.profile("left"), self.profile("right")]},
            "part": lambda: {"requests": [self.part(SLICED)]},
            "client": lambda: {"requests": [self.part(SERVED, threads=str(self.chance.randrange(1, 100)))]},
            "both": lambda: {"requests": [self.profile("cut"), self.part(SLICED)]},
            **{name: partial(self.shared, row) for name, row in sharing.items()},
        }

    def profile(self, name: str = "gpu") -> dict[str, Any]:
        expression = f"device.attributes['{claims.DRIVER}'].profile == '{self.chance.choice(PROFILES)}'"
        return claims.request(name, "mig.nvidia.com", selectors=[{"cel": {"expression": expression}}])

    def part(self, index: int, **more: str) -> dict[str, Any]:
        requests = {"memory": f"{self.chance.choice((1, 5, 10, 20))}Gi", **more}
        return {
            "name": "part",
            "exactly": {**claims.only(self.uuids[index])["exactly"], "capacity": {"requests": requests}},
        }

    def shared(self, sharing: dict[str, Any]) -> dict[str, Any]:
        """Ask for a GPU that the claim's containers share."""
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
        config = [{"opaque": {"driver": claims.DRIVER, "parameters": parameters}}]
        return {"requests": [claims.only(self.uuids[self.chance.choice(WHOLE)])], "config": config}

    def why(self, pod: dict[str, Any]) -> str:
        """As before; what the scheduler gave out just before it was sick stays the pod's that cannot have it."""
        events = claims.why(self.cluster, pod["metadata"]["name"]).splitlines()
        sick = SICK if self.lost >= 0 else SICK[:1]
        return super().why(pod) or next((line for line in events if any(word in line for word in sick)), "")

    def claim(self) -> str:
        name, kind = next(self.names), self.chance.choice(sorted(self.kinds()))
        claim = claims.claim(name)
        claim["spec"]["devices"] = self.kinds()[kind]()
        self.cluster.apply(claim, claims.pod(name, name))
        self.made.append(name)
        return f"{name}: {kind}"

    def strike(self, kubelet: bool = False) -> str:
        """Kill the driver while a claim is prepared, and kubelet beside it."""
        said = self.claim()
        time.sleep(self.chance.random())
        if kubelet:
            self.cluster.node.stop(signal.SIGKILL)
        self.restart()
        if kubelet:
            self.cluster.node.start()
        return said

    def cut_short(self) -> str:
        """Kill the driver while a claim ends."""
        name = self.chance.choice(self.made)
        words = ("pod,resourceclaim", name, "--ignore-not-found", "--wait=false", "--grace-period=0")
        self.cluster.kubectl("delete", *words)
        time.sleep(self.chance.random() / 2)
        self.restart()
        return self.end(name)

    def kill(self, daemon: Daemon) -> None:
        """Kill a program, and start it, as its unit does."""
        daemon.stop(signal.SIGKILL)
        time.sleep(self.chance.choice((0, self.chance.random())))
        daemon.start()

    def restart(self) -> None:
        self.kill(self.node.driver)

    def pause(self) -> None:
        """Have nobody reach the API server for a while."""
        (process,) = [self.cluster.server.process]
        assert process
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(3 * self.chance.random())
        os.killpg(process.pid, signal.SIGCONT)

    def lose(self) -> str:
        if self.lost < 0:
            self.lost = self.chance.randrange(len(self.host.gpus))
            self.host.lose(self.lost)
        else:
            self.host.find(self.lost)
            self.lost = -1
        return str(self.lost)

    def err(self) -> str:
        """Let the driver report an error that one instance has, or a whole GPU, which is over by itself."""
        gpu = self.chance.choice(self.host.gpus)
        gi = self.chance.choice(gpu.instances).gi if gpu.instances else None
        self.host.xid(gpu.index, 94, gi)
        return f"{gpu.index} {gi}"

    def make(self) -> str:
        """Make an instance on a GPU that is cut on demand, or remove one that was made so and no claim has."""
        cuts = self.cuts
        allocated = {row["device"] for _, row in cuts.allocated(self.made)}
        free = [
            name for name, uuid in cuts.instances().items() if name in cuts.hand and uuid.lower() not in allocated
        ]
        if free and self.chance.random() < 0.6:
            name = self.chance.choice(sorted(free))
            (answer,) = cuts.by_nvml(["remove", cuts.hand[name], name])
            if "error" not in answer:
                del cuts.hand[name]
            assert "error" not in answer or self.lost >= 0, answer
            return f"{name} removed: {answer}"
        uuid = self.uuids[self.chance.choice(CUT)]
        name = self.chance.choice([name for name in cuts.sizes if uuid[4:] in name])
        for action in ("check", "make"):
            (answer,) = cuts.by_nvml([action, uuid, name])
            if "error" in answer:
                return f"{name}: {answer}"
        cuts.hand[name] = uuid
        return name

    def lay(self) -> str:
        """Cut a GPU as a layout says, unless containers have what must go."""
        name = self.chance.choice(sorted(LAYOUTS))
        said = self.cluster.run(f"gpushim mig apply /etc/gpushim/mig.yaml --config {name}", check=False)
        words = (f"GPU {LAID} is ", "containers have what must go")
        assert any(word in said for word in words) or self.lost == LAID, said
        return said

    def agree(self) -> None:
        """Wait until all who know of what is cut and given out know the same."""
        if not self.cluster.node.runs:
            return
        found: dict[str, list[list[str]]] = {}

        def alike() -> bool:
            found.clear()
            found.update(self.cuts.differences(self.made, self.uuids[self.lost] if self.lost >= 0 else "none"))
            return not found

        assert until(alike, SECONDS, 0.3), f"{json.dumps(found, indent=1)}\n{self.cluster.node.said()}"

    def forget(self) -> None:
        """End all pods by force while kubelet is away, which forgets their claims: nobody gives these back."""
        self.cluster.node.stop(signal.SIGKILL)
        (self.cluster.node.kubelet_dir / "dra_manager_state").unlink(missing_ok=True)
        if self.made:
            self.end(*self.made, force=True)
        self.cluster.node.start()

    def finish(self) -> None:
        """End all pods: all is offered, and nothing is left."""
        if not self.cluster.node.runs:
            self.cluster.node.start()
        self.settle()
        if self.lost >= 0:
            self.lose()
        self.forget()
        self.agree()
        for name, uuid in self.cuts.hand.items():
            assert self.cuts.by_nvml(["remove", uuid, name]) == [{"answer": None}]
        self.cuts.hand.clear()
        self.agree()
        self.cluster.wait_for(
            lambda: not any(device.get("taints") for device in published(self.cluster).values()),
            "all is well",
            2 * SECONDS,
        )
        left = LEFT.format(f"{self.host.root}/usr/lib/fakehost", self.uuids[SERVED])
        self.cluster.wait_for(lambda: not self.cluster.run(left, check=False), "nothing is left", SECONDS)


def test_all_who_know_of_cuts_and_parts_agree(node: Packaged, host: Host, tmp_path: Path) -> None:
    print(f"GPUSHIM_CUT_WALK_SEED={SEED}")
    walk = CutWalk(node, Containers(node.cluster.node, host, tmp_path / "nodes"), random.Random(SEED))
    try:
        for number in range(STEPS):
            print(f"{time.strftime('%T')} {number}: {walk.step()}; {walk.made}", flush=True)
        walk.finish()
    except AssertionError:
        print(node.log)
        raise
    assert "Traceback" not in node.log
