"""No GPU is given out in two ways at once, and none that a pod has is taken from it, whatever happens to whom."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest

from gpuplugin.devices import changes
from gpuplugin.devices.changes import is_instance
from gpuplugin.record.kubelet_watch import TICK
from gpuplugin.record.transitions import QUIET
from gpuplugin.settings.resources import Device
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record.scene import FORMS, ONE, PART, Instance, Scene, build
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

WISHES = {name: desired for name, (desired, *_) in FORMS.items()}
STEPS = 150


class Node:
    """Two instances of the plugin with settings that change, and a kubelet, which come and go at random."""

    def __init__(self, scene: Scene, draw: random.Random) -> None:
        self.scene, self.draw = scene, draw
        self.plugins: list[Instance | None] = [None, None]
        self.wishes = ["whole", "whole"]
        self.had: dict[tuple[str, str], Device] = {}  # what containers have, as they got it
        self.pods: dict[tuple[str, str], str] = {}  # whose that is
        self.forgotten: set[tuple[str, str]] = set()  # by kubelet, of what they have
        self.names = itertools.count()
        self.boot, self.since, self.part = 0, 0.0, PART
        scene.kubelet_starts(0)

    def step(self) -> None:
        """Have something happen, and hold what is so then against what is promised."""
        rare, often = [self.boots, self.checkpoint_is_lost, self.kubelet_ends], [self.pod_starts, self.pod_starts]
        rare += [self.kubelet_forgets, self.instance_is_made_anew]
        usual = [self.look, self.settings_change, self.plugin_ends, self.plugin_starts, self.kubelet_restarts]
        happens = self.draw.choice([*rare, *usual * 2, *often * 3, self.pod_ends, self.pod_ends, self.time_passes])
        happens()
        ways = {(one.uuid, changes.way(resource, one)) for (resource, _), one in self.had.items()}
        assert len({uuid for uuid, _ in ways}) == len(ways), happens
        assert len({is_instance(uuid) for uuid, _ in ways}) < 2, happens
        assert len({uuid for uuid, _ in ways}) < 2, happens  # instances have one place

    def look(self) -> None:
        self.looks(self.draw.randrange(2))

    def looks(self, which: int) -> None:
        plugin = self.plugins[which]
        if plugin is None:
            return
        if self.scene.pods is not None:
            young = self.scene.now - self.since < QUIET  # of its pods it lists none at first
            self.scene.pods = {}
            self.scene.bare = [] if young else [*self.pods.values()]
            for resource, name in () if young else self.had.keys() - self.forgotten:
                self.scene.pods.setdefault(resource, {})[name] = self.pods[resource, name]
        wish = {
            name: [one if one.uuid != PART else replace(one, id=self.part, uuid=self.part) for one in row]
            for name, row in WISHES[self.wishes[which]].items()
        }
        self.scene.processes = {*self.pods.values()}
        well = plugin.look(wish)
        if self.plugins[1 - which] is None:  # else the other may be who tells it
            there = {key for key, one in self.had.items() if one.uuid in (ONE, self.part)}
            assert {name for _, name in there - self.forgotten} <= well

    def settings_change(self) -> None:
        self.wishes[self.draw.randrange(2)] = self.draw.choice(sorted(WISHES))
        self.look()

    def plugin_starts(self) -> None:
        which = self.draw.randrange(2)
        self.ends(which)
        self.plugins[which] = self.scene.start()
        self.look()

    def plugin_ends(self) -> None:
        self.ends(self.draw.randrange(2))

    def ends(self, which: int) -> None:
        plugin, self.plugins[which] = self.plugins[which], None
        if plugin:
            plugin.registry.instances.leave()  # as the kernel does for one that is killed

    def pod_starts(self) -> None:
        free = [
            (which, name, one)
            for which, plugin in enumerate(self.plugins)
            for name, resource in (plugin.resources.items() if plugin and self.scene.pods is not None else ())
            for one in resource.devices.values()
            if not one.problem and (name, one.id) not in self.had.keys() - self.forgotten
        ]
        if not free:
            return
        which, resource, one = self.draw.choice(free)
        plugin = self.plugins[which]
        assert plugin
        killed = self.draw.random() < 0.2  # after it had written that down, and before kubelet knew
        with contextlib.suppress(GpushimError):
            plugin.allocate(one.id, resource)
            assert (resource, one.id) not in self.had, "it is given out once more"
            if not killed:
                self.had[resource, one.id], self.pods[resource, one.id] = one, f"p{next(self.names)}"
                self.saved()
        if killed:
            self.ends(which)

    def saved(self) -> None:
        """Write kubelet's checkpoint."""
        given: dict[str, dict[str, str]] = {}
        for other, name in self.had.keys() - self.forgotten:
            given.setdefault(other, {})[name] = self.pods[other, name]
        self.scene.checkpoint(given)

    def pod_ends(self) -> None:
        if self.had and self.scene.pods is not None:
            key = self.draw.choice(sorted(self.had))
            del self.had[key], self.pods[key]
            self.forgotten.discard(key)

    def kubelet_forgets(self) -> None:
        there = [which for which in (0, 1) if self.plugins[which]]
        if self.scene.pods is None or not there or self.scene.now - self.since < QUIET:
            return
        self.looks(there[0])
        plugin = self.plugins[there[0]]
        assert plugin
        self.scene.now += TICK + 0.1
        plugin.follow()  # it knows whose that is by then
        self.forgotten = {*self.had}
        self.scene.checkpoint_file.unlink(missing_ok=True)
        self.kubelet_restarts()
        plugin.meet()

    def instance_is_made_anew(self) -> None:
        self.part = uuid(len(self.part) + self.draw.randrange(9), "MIG")
        self.scene.snapshot = snapshot([gpu(0)], [{**mig(0, 0), "uuid": self.part}])

    def kubelet_ends(self) -> None:
        self.scene.kubelet_ends()

    def kubelet_restarts(self) -> None:
        self.scene.kubelet_starts(0)
        if not self.scene.checkpoint_file.exists():
            self.forgotten = {*self.had}
        self.since = self.scene.now

    def checkpoint_is_lost(self) -> None:
        there = [which for which in (0, 1) if self.plugins[which]]
        is_young = self.scene.now - self.since < QUIET
        if (
            self.scene.pods is not None and there and not is_young
        ):  # one that has noticed kubelet: no pod is given back without it
            self.looks(there[0])
            self.scene.checkpoint_file.unlink(missing_ok=True)

    def boots(self) -> None:
        self.scene.kubelet_ends()
        for which in (0, 1):
            self.ends(which)
        self.boot += 1
        kept = self.scene.checkpoint_file.exists()  # what is in it is given back to its pods, where it is
        self.had = {
            key: one
            for key, one in self.had.items()
            if kept and key not in self.forgotten and one.uuid in (ONE, self.part)
        }
        self.pods, self.forgotten = {key: self.pods[key] for key in self.had}, set()

    def time_passes(self) -> None:
        self.scene.now += QUIET


@pytest.mark.parametrize("seed", range(40))
def test_no_gpu_is_given_out_in_two_ways(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with build(monkeypatch) as scene:
        node = Node(scene, random.Random(seed))
        monkeypatch.setattr(system, "boot", lambda: f"boot {node.boot}")
        for _ in range(STEPS):
            node.step()
        for which in (0, 1):
            node.ends(which)
