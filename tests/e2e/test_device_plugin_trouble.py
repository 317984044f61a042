"""GPUs in all kinds of trouble at random moments, while the plugin is restarted and pods are made and removed.

$GPUSHIM_TROUBLE_SECONDS says how long, $GPUSHIM_TROUBLE_SEED repeats a run as far as a machine repeats itself.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fakehost
from e2e import shares, trees
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import Plugin, plugin
from e2e.shares import LAYOUTS, PROFILES, WHOLE
from e2e.truth import APPLICATION, CONTAINED, FATAL, Truth
from e2e.watchers import watches
from fakehost import Gpu, Host
from gpushim.inventory import procfs
from sample import turn

SECONDS = float(os.environ.get("GPUSHIM_TROUBLE_SECONDS", "40"))
LEAST = int(SECONDS / 30) + 1  # containers that a run sees, or it has shown nothing: a slow machine goes on for them
SEED = os.environ.get("GPUSHIM_TROUBLE_SEED") or str(time.time_ns())
PODS = 4  # at most
MOST = 2  # GPUs, of four, in trouble that nothing but healing ends
STEADY = 90.0  # seconds until kubelet has what is so: a contained error and a call that hung are over after 60


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A host with three whole GPUs and a divided one."""
    root = tmp_path_factory.mktemp("trouble") / "root"
    gpus = [{}, {}, {"mig": LAYOUTS[0]}, {}]
    return Truth(fakehost.build(str(root), gpus, compile_cache=str(trees.TOP / ".cache" / "fakehost")), WHOLE)


@pytest.fixture(scope="module")
def host(truth: Truth) -> Host:
    return truth.host


class Run:
    """One run: what there is, and what has been seen of it."""

    def __init__(self, truth: Truth, one: Plugin, folder: Path, chance: random.Random) -> None:
        self.truth, self.one, self.node, self.folder, self.chance = truth, one, one.node, folder, chance
        self.profile = "whole"
        self.names = (f"p{number}" for number in itertools.count())
        self.made: dict[str, float] = {}  # pods that are asked for, and since when
        self.had: dict[str, set[str]] = {}  # ids by container

    def view(self) -> dict[str, list[str]]:
        """Return what kubelet would give out."""
        found = {name: ids for name, ids in self.node.everything().items() if ids}
        self.truth.look(found)
        return found

    def agree(self) -> None:
        """Wait until kubelet's view is the truth."""
        began = time.monotonic()
        true = until(lambda: self.one.process is not None and self.view() == self.truth.ids(), STEADY)
        assert true, f"kubelet: {self.view()}\ntruth: {self.truth.ids()}\n{self.one.said()[-4000:]}"
        print(f"  true after {time.monotonic() - began:.1f} s", flush=True)

    def rest(self) -> None:
        """Stop, without healing but what hangs, and compare; no pod may hold a profile back."""
        self.truth.hang("")
        self.remove(*self.made)
        self.agree()

    def remove(self, *names: str) -> None:
        """Remove pods."""
        for name in names:
            del self.made[name]
        if names:
            self.node.remove(*names)

    def change(self) -> None:
        """Make a pod, or remove one; one that was refused for good is removed."""
        refused = [name for name in self.made if (pod := self.node.status(name)) and pod.phase == "Failed"]
        gone = self.chance.random() < 0.3 or len(self.made) == PODS
        self.remove(*{*refused, *(self.chance.sample(sorted(self.made), 1) if self.made and gone else ())})
        if not gone:
            offered = [(name, len({one.partition("::")[0] for one in ids})) for name, ids in self.view().items()]
            if offered:
                resource, most = self.chance.choice(sorted(offered))
                name = next(self.names)
                self.made[name] = time.monotonic()
                self.node.create(name, {resource: self.chance.choice((1, 1, min(2, most)))})

    def look(self) -> None:
        """Look at containers that are new, and at whether the others have what they had."""
        self.view()
        everybody = {name: [*itertools.chain(*ids.values())] for name, ids in self.node.everybody().items()}
        running = []  # kubelet lists one that was refused, or has ended, beside the next that has its device
        for name, since in self.made.items():
            pod, held = self.node.status(name), {*everybody.get(name, ())}
            if not (pod and pod.phase == "Running" and pod.container and held):
                continue
            running += everybody[name]
            if pod.container not in self.had:
                self.first(name, pod.container, held, since)
            assert self.had[pod.container] == held, name
        assert len(running) == len({*running}), everybody

    def first(self, name: str, container: str, held: set[str], since: float) -> None:
        """Look at a container that was made after its pod was asked for: nothing in it was sick all that time."""
        self.had[container] = held
        uuids = {one.partition("::")[0] for one in held}
        sick = {uuid: self.truth.since[uuid] for uuid in uuids if self.truth.since.get(uuid, since) < since}
        assert not sick, f"{name} was asked for at {since} and has {sick}\n{self.one.said()[-4000:]}"
        whole = [one for one in held if one.startswith("GPU-")]  # parts of one MIG instance may go together
        if any("distinct" in row for row in PROFILES[self.profile][1].get("resources", ())):
            assert len({one.partition("::")[0] for one in whole}) == len(whole)
        nodes = self.node.run(container, ["sh", "-c", "cd /dev; ls -d nvidia[0-9]*"]).split()
        assert {*nodes} >= self.truth.nodes(uuids), f"{name} has {nodes} for {uuids}"
        assert len(nodes) <= len(uuids), f"{name} has {nodes} for {uuids}"

    def trouble(self) -> str:
        """Do one thing that a node's GPUs or its administrator do."""
        truth, here = self.truth, sorted(gpu.uuid for gpu in self.truth.host.gpus)
        ill = [uuid for uuid in here if truth.ill(uuid)]
        if len(ill) >= MOST:  # or nothing is left to hand out, and all agree
            return truth.heal(self.chance.choice(ill))
        whole = sorted({gpu.uuid for gpu in truth.host.gpus if not gpu.mig} - truth.lost)
        uuid = self.chance.choice(here)
        things: dict[str, Callable[[], object]] = {
            "xid": self.xid,
            "xid again": self.xid,
            "lost or found": lambda: truth.lose(self.chance.choice([*truth.lost & {*here}, uuid])),
            "recovery": lambda: truth.ask(uuid, self.chance.choice((0, 0, 1, 2, 4))),
            "driver": truth.reload,
            "mig": lambda: truth.divide(self.chance.choice(LAYOUTS)),
            "plugin": self.restart,
            "profile": self.choose,
        }
        if truth.away:
            things["plug"] = lambda: truth.plug(self.chance.choice(sorted(truth.away)))
        elif len(whole) > 1:
            things["unplug"] = lambda: truth.unplug(self.chance.choice(whole))
        what = self.chance.choice(sorted(things))
        things[what]()
        return what

    def xid(self) -> None:
        """Let the driver report an error; nobody hears of one while a child starts."""
        self.truth.hang("")
        watches(self.one, STEADY)
        gpu = self.chance.choice([gpu for gpu in self.truth.host.gpus if gpu.uuid not in self.truth.lost] or [None])
        if gpu is None:
            return
        assert until(lambda: self.bound(gpu), STEADY), f"{gpu.uuid}\n{self.one.said()[-4000:]}"
        gi = self.chance.choice(gpu.mig).gi if gpu.mig else None
        number = self.chance.choice((APPLICATION, FATAL, CONTAINED if gi else FATAL))
        self.truth.xid(gpu.uuid, number, gi)

    def bound(self, gpu: Gpu) -> bool:
        """Return whether the plugin has met the driver that a GPU has now: none is loaded while a child listens."""
        health = json.loads(Path(self.one.env["GPUSHIM_STATE"], "device-plugin/health.json").read_text())
        there = Path(self.truth.host.root, "sys/bus/pci/drivers/nvidia", procfs.sysfs_name(gpu.pci))
        known = health["gpus"].get(gpu.uuid)
        return known is not None and bool(known["binding"][1] == there.lstat().st_ino)

    def restart(self) -> None:
        """End the plugin, and start it."""
        self.one.stop(self.chance.choice((signal.SIGTERM, signal.SIGKILL)))
        time.sleep(self.chance.random())
        self.one.start()

    def choose(self) -> None:
        """Choose another profile, which waits for pods that it would take a device from: now there are none."""
        self.remove(*self.made)
        self.profile = self.chance.choice(sorted(PROFILES))
        shares.choose(self.folder, self.profile)
        self.truth.shares = shares.of(self.profile)


@pytest.mark.skipif(not turn(2), reason="half a minute, with every second commit; GPUSHIM_LONG=1")
def test_at_rest_kubelet_has_what_is_so(node: Node, truth: Truth, env: dict[str, str], tmp_path: Path) -> None:
    print(f"GPUSHIM_TROUBLE_SEED={SEED}")
    chance = random.Random(SEED)
    with plugin(node, env, *shares.flags(tmp_path)) as one:
        this = Run(truth, one, tmp_path, chance)
        this.agree()
        end, hang = time.monotonic() + SECONDS, time.monotonic() + SECONDS * chance.uniform(0.1, 0.4)
        while time.monotonic() < end or (len(this.had) < LEAST and time.monotonic() < end + 2 * SECONDS):
            print(f"{time.strftime('%T')} {this.trouble()} {sorted(this.made)}", flush=True)
            if time.monotonic() > hang:
                hang = end
                truth.hang(chance.choice([gpu.uuid for gpu in truth.host.gpus]))
            for _ in range(chance.randrange(4)):
                this.change()
                time.sleep(chance.choice((0, chance.random())))
                this.look()
            time.sleep(chance.choice((0, chance.random(), 4 * chance.random())))
            this.look()
            if chance.random() < 0.15:
                this.rest()
        this.rest()
        print(f"{len(this.had)} containers seen")
        assert len(this.had) >= LEAST
        assert one.stop() == 0
        assert "Traceback" not in one.said()
        assert "panic" not in node.said()
