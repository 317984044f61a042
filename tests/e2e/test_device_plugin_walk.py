"""Plugin, settings, a second instance, kubelet and GPUs changed at random: no GPU is two pods' that is one's alone.

After each step all containers are looked at from inside (reach.py). $GPUSHIM_WALK_STEPS says how many steps,
$GPUSHIM_WALK_SEED repeats a walk as far as a machine repeats itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import shares, trees
from e2e.kube import Node
from e2e.leftovers import until
from e2e.plugins import Plugin, plugin
from e2e.reach import ENDING, Containers
from e2e.truth import Truth
from fakehost import Host

STEPS = int(os.environ.get("GPUSHIM_WALK_STEPS", "25"))
SEED = os.environ.get("GPUSHIM_WALK_SEED") or str(time.time_ns())
PODS = 4  # at most
SETTLES, STEADY = 60.0, 60.0  # seconds until all pods run or are refused; until all is offered when none is left
OFFERS = 3.0  # seconds in which a plugin that has just been started offers something
ENDS = (signal.SIGTERM, signal.SIGKILL)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A host with two whole GPUs and a divided one."""
    root = tmp_path_factory.mktemp("walk") / "root"
    gpus = [{}, {"mig": shares.LAYOUTS[0]}, {}]
    host = fakehost.build(str(root), gpus, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    return Truth(host, shares.of("whole"))


@pytest.fixture(scope="module")
def host(truth: Truth) -> Host:
    return truth.host


@pytest.fixture(scope="module")
def node(node: Node) -> Iterator[Node]:
    yield node
    if not node.runs:
        node.start()
    node.end_shims()


class Walk:
    """A walk: what there is, and what has become of it.

    Args:
        truth: the host.
        instances: of the plugin, and the directory of each one's settings; the first one runs.
        inside: what looks into containers.
        chance: what decides.
    """

    def __init__(
        self, truth: Truth, instances: list[tuple[Plugin, Path]], inside: Containers, chance: random.Random
    ) -> None:
        self.truth, self.instances, self.inside, self.chance = truth, instances, inside, chance
        self.node = inside.node
        self.profiles = ["whole" for _ in instances]
        self.names = (f"p{number}" for number in itertools.count())
        self.made: dict[str, tuple[str, int]] = {}  # what each pod asks for

    def step(self) -> str:
        """Do one thing; say which."""
        things = {**self.beside(), **(self.with_kubelet() if self.node.runs else {"kubelet comes": self.node.start})}
        what = self.chance.choice(sorted(things))
        more = things[what]()
        time.sleep(self.chance.choice((0, self.chance.random(), 2)))
        self.settle()
        self.inside.look()
        self.agree()
        return f"{what} {more or ''}"

    def with_kubelet(self) -> dict[str, Callable[[], object]]:
        """List what can be done while kubelet runs; what is there more than once is done more often."""
        found: dict[str, Callable[[], object]] = {
            "kubelet again": lambda: self.kubelet(self.chance.choice(ENDS)),
            "kubelet goes": lambda: self.node.stop(self.chance.choice(ENDS)),
            "checkpoint lost": self.forget,
        }
        if len(self.made) < PODS:
            found.update({"pod": self.create, "pod, another": self.create, "pod, one more": self.create})
            found["both killed"] = self.strike
        if self.made:
            found.update({"pod ends": self.end, "pod ends, another": self.end})
        return found

    def beside(self) -> dict[str, Callable[[], object]]:
        """List what can be done at any time."""
        truth, here = self.truth, sorted(gpu.uuid for gpu in self.truth.host.gpus)
        whole = [gpu.uuid for gpu in truth.host.gpus if not gpu.mig and gpu.uuid not in truth.lost]
        found: dict[str, Callable[[], object]] = {
            "plugin again": self.restart,
            "plugin, other settings": lambda: self.restart(again=True),
            "profile": lambda: self.choose(self.chance.choice(self.up())),
            "instance": self.instance,
            "mig": lambda: truth.divide(self.chance.choice(shares.LAYOUTS)),
        }
        if truth.lost:
            found["found"] = lambda: truth.lose(self.chance.choice(sorted(truth.lost)))
        else:
            found["lost"] = lambda: truth.lose(self.chance.choice(here))
        if truth.away:
            found["plugged"] = lambda: truth.plug(self.chance.choice(sorted(truth.away)))
        elif len(whole) > 1:
            found["unplugged"] = lambda: truth.unplug(self.chance.choice(sorted(whole)))
        return found

    def up(self) -> list[int]:
        """The instances that run."""
        return [number for number, (one, _) in enumerate(self.instances) if one.process]

    def create(self) -> str:
        """Ask for a pod with some of what is offered."""
        if not until(lambda: any(self.node.everything().values()), OFFERS):
            return "nothing is offered"
        view = sorted((name, len(ids)) for name, ids in self.node.everything().items() if ids)
        resource, most = self.chance.choice(view)
        name, number = next(self.names), self.chance.choice((1, 1, min(2, most)))
        self.made[name] = resource, number
        self.node.create(name, {resource: number}, command=ENDING)
        return f"{name} {number} of {resource}"

    def end(self, *names: str) -> str:
        """Remove pods, or any."""
        gone = names or (self.chance.choice(sorted(self.made)),)
        for name in gone:
            del self.made[name]
        self.inside.end(*gone)
        return " ".join(gone)

    def kubelet(self, number: int, lose: bool = False) -> None:
        """End kubelet, and start it."""
        self.node.stop(number)
        if lose:
            (self.node.kubelet_dir / "device-plugins" / "kubelet_internal_checkpoint").unlink(missing_ok=True)
        self.node.start()

    def forget(self) -> None:
        """Let kubelet lose what it knows of devices."""
        self.kubelet(signal.SIGKILL, lose=True)

    def restart(self, again: bool = False) -> str:
        """End an instance, and start it."""
        number = self.chance.choice(self.up())
        one, _ = self.instances[number]
        one.stop(self.chance.choice(ENDS))
        if again:
            self.choose(number)
        one.start()
        return f"{number} {self.profiles[number]}"

    def strike(self) -> str:
        """Kill kubelet and an instance while a pod is made, and bring both back, in any order."""
        made, (one, _) = self.create(), self.instances[self.chance.choice(self.up())]
        time.sleep(self.chance.choice((0, self.chance.random())))
        ends = (lambda: one.stop(signal.SIGKILL), lambda: self.node.stop(signal.SIGKILL))
        for do in (*self.chance.sample(ends, 2), *self.chance.sample((one.start, self.node.start), 2)):
            do()
        return made

    def choose(self, number: int) -> str:
        """Let an instance have other settings."""
        self.profiles[number] = self.chance.choice(sorted({*shares.PROFILES} - {self.profiles[number]}))
        shares.choose(self.instances[number][1], self.profiles[number])
        return f"{number} {self.profiles[number]}"

    def instance(self) -> str:
        """Start the other instance, with other settings; or end one of two."""
        running = self.up()
        if len(running) > 1:
            number = self.chance.choice(running)
            self.instances[number][0].stop(self.chance.choice(ENDS))
            return f"{number} ends"
        (number,) = {*range(len(self.instances))} - {*running}
        self.choose(number)
        self.instances[number][0].start()
        return f"{number} {self.profiles[number]}"

    def settle(self) -> None:
        """Wait until each pod runs or was refused, and remove these."""
        if not self.node.runs:
            return

        def settled() -> bool:
            found = {name: self.node.status(name) for name in self.made}
            return all(pod and (pod.phase == "Failed" or pod.container or pod.why) for pod in found.values())

        assert until(settled, SETTLES), {name: self.node.status(name) for name in self.made}
        found = {name: self.node.status(name) for name in self.made}
        refused = [name for name, pod in found.items() if pod and not pod.container]
        if refused:
            print(f"  refused: {[(name, pod and pod.why) for name, pod in found.items() if name in refused]}")
            self.end(*refused)

    def agree(self) -> None:
        """See that pods have what they asked for, and that nothing is offered that excludes what one has."""
        if not self.node.runs:
            return
        ways = [shares.of(name).values() for name in shares.PROFILES]
        forms = {(name, replicas > 1) for rows in ways for name, replicas in rows}
        for name, (resource, number) in self.made.items():
            held = self.node.held(name)
            if held:  # a checkpoint that is lost takes it along
                assert {resource: number} == {one: len(ids) for one, ids in held.items()}, (name, held)
                # Each GPU in the way that it is given out: of several, one may still have the old way.
                shared = {(resource, "::" in one) for one in held[resource]}
                assert shared <= forms | {(resource, False)} - {("nvidia.com/gpu.dev", False)}, held
        bad = self.inside.offered(self.node.everything(), self.inside.look())
        assert not bad, f"{bad} can be had"

    def finish(self) -> float:
        """End all pods; all is offered again as it is wanted. Say after how long."""
        if not self.node.runs:
            self.node.start()
        for uuid in [*self.truth.lost]:
            self.truth.lose(uuid)
        for uuid in [*self.truth.away]:
            self.truth.plug(uuid)
        while len(self.up()) > 1:
            self.instance()
        if self.made:
            self.end(*self.made)
        self.truth.shares = shares.of(self.profiles[self.up()[0]])
        began = time.monotonic()

        def whole() -> bool:
            return {name: ids for name, ids in self.node.everything().items() if ids} == self.truth.ids()

        assert until(whole, STEADY), f"kubelet: {self.node.everything()}\ntruth: {self.truth.ids()}"
        return time.monotonic() - began


def test_no_gpu_is_twice_what_is_ones_alone(node: Node, truth: Truth, env: dict[str, str], tmp_path: Path) -> None:
    print(f"GPUSHIM_WALK_SEED={SEED}")
    folders = tmp_path / "a", tmp_path / "b"
    with (
        plugin(node, env, *shares.flags(folders[0]), name="a") as one,
        plugin(node, env, *shares.flags(folders[1]), name="b", start=False) as other,
    ):
        one.offers()
        both = [(one, folders[0]), (other, folders[1])]
        walk = Walk(truth, both, Containers(node, truth.host, tmp_path / "nodes"), random.Random(SEED))
        try:
            for number in range(STEPS):
                print(f"{time.strftime('%T')} {number}: {walk.step()}; {walk.made}", flush=True)
            print(f"{time.strftime('%T')} all is offered after {walk.finish():.1f} s; {len(walk.inside.parts)} seen")
        except AssertionError:
            print(*(each.said()[-6000:] for each, _ in both), sep="\n--\n")
            raise
        assert "Traceback" not in one.said() + other.said()
        assert "panic" not in node.said()
