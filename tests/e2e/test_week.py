"""A week in a minute: a host that changes at random beside creates, and none gets a node that it did not ask for.

The seeds are fixed, so that a failure can be looked at; GPUSHIM_LONG=1 tries more of them. Drivers are upgraded, GPUs
lost, reset and bound in another order, MIG instances made, made again and removed, configurations deployed, nodes and
the state directory removed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from e2e.changing import Node, Scene, gpus
from fakehost import ci_cap, gi_cap
from gpushim.ground.errors import DRIVER, INVENTORY, REQUEST
from sample import LONG

SECONDS = 8.0  # for one seed
WORKERS = 3
ENOUGH = 4  # containers that get a GPU, of each worker: on a busy machine after more seconds
LONGEST = 60.0  # seconds
WHOLE = 2  # GPUs that are never divided; the third may be in MIG mode and have nothing to give
SEEDS = range(12) if LONG else (1, 2)
NAMES = ("MIG-00000000-1111-2222-3333-444444444444", "MIG-55555555-6666-7777-8888-999999999999")
REFUSALS = {REQUEST, INVENTORY, DRIVER}


class Instant(NamedTuple):
    """What was true for a time: which nodes give access to which GPU or MIG instance, by UUID."""

    begins: float
    devices: dict[str, frozenset[Node]]
    uvm: int


class History:
    """What the host was like, and when.

    Args:
        scene: the host.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.instants: list[Instant] = []
        self.ends: list[float] = []  # of each instant, when the change that ended it was over
        self.note()

    def note(self) -> None:
        """Note what is true from here on."""
        self.ends.append(time.monotonic())
        self.instants.append(Instant(time.monotonic(), devices(self.scene), self.scene.host.majors["nvidia-uvm"]))

    def change(self, event: str, chance: random.Random) -> None:
        """Let something happen: while it does, what was and what will be are both true."""
        begun = time.monotonic()
        EVENTS[event](self.scene, chance)
        self.note()
        self.instants[-1] = self.instants[-1]._replace(begins=begun)

    def during(self, begun: float, ended: float) -> list[Instant]:
        """List what was true at some instant between these."""
        ends = [*self.ends[1:], float("inf")]
        return [one for one, over in zip(self.instants, ends) if one.begins <= ended and over >= begun]


def devices(scene: Scene) -> dict[str, frozenset[Node]]:
    """List the nodes of each GPU that can be asked for, and of each MIG instance."""
    host, found = scene.host, {}
    for gpu in host.gpus:
        own: Node = (f"/dev/nvidia{gpu.minor}", 195, gpu.minor)
        found[gpu.uuid] = frozenset({own})
        for mig in gpu.mig:
            caps = gi_cap(gpu.minor, mig.gi), ci_cap(gpu.minor, mig.gi, mig.ci)
            major = host.majors["nvidia-caps"]
            found[mig.uuid] = frozenset({own, *((f"/dev/nvidia-caps/nvidia-cap{cap}", major, cap) for cap in caps)})
    return found


def upgrade(scene: Scene, chance: random.Random) -> None:
    scene.host.driver = scene.host.module_version = chance.choice(("535.183.01", "550.54.14", "560.35.03"))
    scene.host.majors["nvidia-uvm"] = chance.choice((506, 507, 508))
    scene.host.install(scene.cache)


def half_upgrade(scene: Scene, chance: random.Random) -> None:
    was = scene.host.module_version
    scene.host.half_upgrade("999.1")
    time.sleep(0.3)
    scene.host.half_upgrade(was)


def lose(scene: Scene, chance: random.Random) -> None:
    scene.host.behave(fail_gpu={chance.randrange(3): 15})


def fail(scene: Scene, chance: random.Random) -> None:
    scene.host.behave(fail=999)


def reset(scene: Scene, chance: random.Random) -> None:
    scene.host.behave()


def rebind(scene: Scene, chance: random.Random) -> None:
    minors = [gpu.minor for gpu in scene.host.gpus]
    chance.shuffle(minors)
    for gpu, minor in zip(scene.host.gpus, minors):
        gpu.minor = minor
    scene.host.update()


def divide(scene: Scene, chance: random.Random) -> None:
    """Make instances, which may be in the places of others before them."""
    first, second = chance.sample(NAMES, 2)
    instances = [(1, 0, "3g.20gb", first), (2, 0, "2g.10gb", second)]
    scene.host.set_mig(2, instances[: chance.randrange(3)])


def undivide(scene: Scene, chance: random.Random) -> None:
    scene.host.gpus[2].mig_mode, scene.host.gpus[2].mig = (0, 0), []
    scene.host.update()


def deploy(scene: Scene, chance: random.Random) -> None:
    config = Path(scene.env["GPUSHIM_CONFIG"])
    fresh = config.with_name("deployed")
    fresh.write_text(config.read_text().partition("\n# ")[0] + f"\n# {chance.random()}\n")
    os.utime(fresh, (1, 1))
    os.rename(fresh, config)


def lose_node(scene: Scene, chance: random.Random) -> None:
    name = chance.choice(sorted(os.listdir(scene.host.node("nvidia-caps")))) if chance.random() < 0.5 else ""
    with contextlib.suppress(FileNotFoundError):  # it was lost before, and no refresh has made it since
        scene.host.remove_node(f"nvidia-caps/{name}" if name else f"nvidia{chance.randrange(3)}")


def forget(scene: Scene, chance: random.Random) -> None:
    shutil.rmtree(scene.state, ignore_errors=True)


def grow_old(scene: Scene, chance: random.Random) -> None:
    """Let the snapshot's life be over; a refresh may save another at the same time."""
    with contextlib.suppress(OSError, ValueError):
        scene.age()


EVENTS = {
    event.__name__: event
    for event in (
        *(upgrade, half_upgrade, lose, fail, reset, rebind, divide, undivide),
        *(deploy, lose_node, forget, grow_old),
    )
}
OFTEN = (*EVENTS, "rebind", "divide", "reset", "grow_old")


def wrong(asked: str, found: set[Node], then: list[Instant]) -> Optional[str]:
    """Return what a container has got that it did not ask for at any of these instants."""
    given = {node for node in found if "uvm" not in node[0]}
    if {node[1] for node in found - given} - {one.uvm for one in then}:
        return "the major of unified memory is another"
    if asked == "all":
        ever = frozenset().union(*(nodes for one in then for nodes in one.devices.values()))
        if given - ever:
            return "it has something that is no GPU's"
        return "it has fewer" if len(gpus(given)) < WHOLE else None
    fits = [one.devices.get(asked) for one in then]
    return None if frozenset(given) in fits else f"{sorted(given)} is none of {fits}"


def creates(scene: Scene, history: History, number: int, until: float, seed: int) -> Counter[str]:
    """Create containers until a time, and enough; return how they ended."""
    chance = random.Random(f"{seed}/{number}")
    ended: Counter[str] = Counter()
    while (now := time.monotonic()) < until or (ended["given"] < ENOUGH and now < until + LONGEST):
        asked = chance.choice([*(gpu.uuid for gpu in scene.host.gpus), *NAMES, "all"])
        begun = time.monotonic()
        done, found = scene.ask(asked, f"c{number}")
        then = history.during(begun, time.monotonic())
        if done.returncode:
            assert done.returncode in REFUSALS, done.stderr
            assert (found, done.stderr.count("\n")) == (set(), 1), (found, done.stderr)
        else:
            said = wrong(asked, found, then)
            assert not said, f"seed {seed}, asked for {asked}: {said}; {scene.saved()['written']}"
        ended["refused" if done.returncode else "given"] += 1
    return ended


@pytest.mark.parametrize("seed", SEEDS)
def test_no_container_gets_what_it_did_not_ask_for(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path, [{}, {}, {"mig": [(1, 0, "3g.20gb", NAMES[0])]}])
    history, chance = History(scene), random.Random(seed)
    until = time.monotonic() + SECONDS
    happened: Counter[str] = Counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        running = [pool.submit(creates, scene, history, number, until, seed) for number in range(WORKERS)]
        while not all(one.done() for one in running):
            event = chance.choice(OFTEN)
            history.change(event, chance)
            happened[event] += 1
            # Never within one tick of the kernel's clock for files: no driver changes MIG twice in that.
            time.sleep(chance.choice((0.03, 0.05, 0.3)))
        ended = sum((one.result() for one in running), Counter[str]())
    assert ended["given"] >= ENOUGH * WORKERS, (ended, happened)
    assert len(happened) > 6, happened


def test_the_invariant_sees_a_wrong_node() -> None:
    mine, other = ("/dev/nvidia0", 195, 0), ("/dev/nvidia1", 195, 1)
    then = [Instant(0, {"GPU-a": frozenset({mine}), "GPU-b": frozenset({other})}, 508)]
    assert wrong("GPU-a", {mine, ("/dev/nvidia-uvm", 508, 0)}, then) is None
    assert wrong("GPU-a", {other}, then)
    assert wrong("GPU-a", {mine, other}, then)
    assert wrong("GPU-a", {mine, ("/dev/nvidia-uvm", 507, 0)}, then)
    assert wrong("all", {mine, ("/dev/nvidia7", 195, 7)}, then)
    assert wrong("all", set(), then)
