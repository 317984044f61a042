"""No GPU is given out in two ways at once, and none that a pod or claim has is taken from it, whatever happens."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from dataclasses import replace

import pytest

from gpuplugin.devices import changes
from gpuplugin.devices.changes import CLAIM, is_instance
from gpuplugin.record import grants
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.kubelet_watch import TICK
from gpuplugin.record.transitions import QUIET
from gpuplugin.settings.resources import Device
from gpushim.containers.kubelet import OWN_DRIVER, Claim
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record.rows import claim, claim_device
from unit.gpuplugin.record.scene import FORMS, ONE, PART, Instance, Scene, build
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

WISHES = {name: desired for name, (desired, *_) in FORMS.items()}
STEPS = 300
SEEDS = int(os.environ.get("GPUSHIM_WALKS", "40"))
Key = tuple[str, str]  # resource and id, or CLAIM and the claim's name
ALL = 40960  # MiB of a device


class Node:
    """Two instances of the plugin with settings that change, the DRA driver, and a kubelet; they come and go."""

    def __init__(self, scene: Scene, draw: random.Random) -> None:
        self.scene, self.draw = scene, draw
        self.plugins: list[Instance | None] = [None, None]
        self.wishes = ["whole", "whole"]
        self.had: dict[Key, Device] = {}  # what containers have, as they got it
        self.pods: dict[Key, str] = {}  # whose that is; each has a process
        self.memory: dict[Key, int] = {}  # what claims have of their device
        self.forgotten: set[Key] = set()  # by kubelet, of what they have
        self.unlisted: set[Key] = set()  # what init containers have
        self.names = itertools.count()
        self.boot, self.since, self.part = 0, 0.0, PART
        scene.kubelet_starts(0)

    def step(self) -> None:
        """Have something happen, and hold what is so then against what is promised."""
        rare = [self.boots, self.checkpoint_is_lost, self.kubelet_ends, self.kubelet_forgets, self.record_is_damaged]
        usual = [self.look, self.settings_change, self.plugin_ends, self.plugin_starts, self.kubelet_restarts]
        usual += [self.instance_is_made_anew, self.pod_is_deleted_by_force, self.claim_is_prepared]
        often = [self.pod_starts, self.pod_starts, self.pod_starts, self.pod_ends, self.pod_ends, self.time_passes]
        happens = self.draw.choice([*rare, *usual * 2, *often * 2])
        happens()
        ways = {(device.uuid, changes.way(resource, device)) for (resource, _), device in self.had.items()}
        assert len({uuid for uuid, _ in ways}) == len(ways), happens
        assert len({is_instance(uuid) for uuid, _ in ways}) < 2, happens
        assert len({uuid for uuid, _ in ways}) < 2, happens  # instances have one place
        assert sum(self.memory[key] for key in self.had if key[0] == CLAIM) <= ALL, happens

    def known(self) -> list[Key]:
        """What kubelet has of the device plugin."""
        return [key for key in self.had if key not in self.forgotten and key[0] != CLAIM]

    def look(self) -> None:
        self.looks(self.draw.randrange(2))

    def looks(self, which: int) -> None:
        plugin = self.plugins[which]
        if plugin is None:
            return
        self.tell()
        wish = {
            name: [row if row.uuid != PART else replace(row, id=self.part, uuid=self.part) for row in rows]
            for name, rows in WISHES[self.wishes[which]].items()
        }
        well = plugin.look(wish)
        if self.plugins[1 - which] is None:  # else the other may be who tells it
            assert {key[1] for key in self.known() if self.had[key].uuid in (ONE, self.part)} <= well

    def tell(self) -> None:
        """Have kubelet list what it has; of its pods it lists none at first."""
        self.scene.processes = {*self.pods.values()}
        if self.scene.pods is None:
            return
        is_young = self.scene.now - self.since < QUIET
        self.scene.pods, self.scene.claims = {}, []
        self.scene.bare = [] if is_young else [*self.pods.values(), "other"]
        for resource, name in () if is_young else self.known():
            if (resource, name) not in self.unlisted:
                self.scene.pods.setdefault(resource, {})[name] = self.pods[resource, name]
        for key, device in self.had.items():
            if key[0] == CLAIM and key not in self.forgotten and not is_young:
                cdi = (f"nvidia.com/gpu={device.uuid}",)
                self.scene.claims.append(Claim("d", self.pods[key], OWN_DRIVER, "n", device.uuid.lower(), cdi))

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
            (which, name, device)
            for which, plugin in enumerate(self.plugins)
            for name, resource in (plugin.resources.items() if plugin and self.scene.pods is not None else ())
            for device in resource.devices.values()
            if not device.problem and (name, device.id) not in self.known()
        ]
        if not free:
            return
        self.scene.processes = {*self.pods.values()}
        which, resource, device = self.draw.choice(free)
        plugin, key = self.plugins[which], (resource, device.id)
        assert plugin
        is_killed = self.draw.random() < 0.2  # after it had written that down, and before kubelet knew
        with contextlib.suppress(GpushimError):
            plugin.allocate(device.id, resource)
            assert key not in self.had, "it is given out once more"
            if not is_killed:
                self.had[key], self.pods[key] = device, f"p{next(self.names)}"
                if self.draw.random() < 0.2:
                    self.unlisted.add(key)
                self.save()
        if is_killed:
            self.ends(which)

    def claim_is_prepared(self) -> None:
        """By the DRA driver, which goes by the record."""
        plugins = [plugin for plugin in self.plugins if plugin]
        if not plugins or self.scene.pods is None:
            return
        self.looks(self.plugins.index(plugins[0]))
        file, device, name = AllocationsFile(), self.draw.choice([ONE, self.part]), f"c{next(self.names)}"
        placement = "1/0" if device != ONE else ""
        memory, had = self.draw.choice([ALL, ALL // 2, ALL // 4]), claim_device(device, ONE, placement)
        if memory < ALL:
            had["share"] = {"id": name, "memory": memory, "of": ALL, "limited": True, "threads": 0, "group": ""}
        row = claim(had, name=name, pods=[f"uid-{name}"], since=self.scene.now)
        with contextlib.suppress(GpushimError), file.locked() as before:
            record = file.current(before)
            if not record["unknown"]:
                file.write(grants.grant_claim(record, name, row))
                self.had[CLAIM, name] = Device(device, device, "", 0)
                self.pods[CLAIM, name], self.memory[CLAIM, name] = name, memory

    def save(self) -> None:
        """Write kubelet's checkpoint."""
        given: dict[str, dict[str, str]] = {}
        for resource, name in self.known():
            given.setdefault(resource, {})[name] = self.pods[resource, name]
        self.scene.checkpoint(given)

    def pod_ends(self) -> None:
        if self.had and self.scene.pods is not None:
            key = self.draw.choice(sorted(self.had))
            if key[0] == CLAIM:
                self.undo_claim(self.pods[key])
            del self.had[key], self.pods[key]
            self.forgotten.discard(key)
            self.unlisted.discard(key)
            if self.draw.random() < 0.7:
                self.save()

    def undo_claim(self, name: str) -> None:
        file = AllocationsFile()
        with file.locked() as before:
            record = file.current(before)
            claims = {uid: row for uid, row in record["claims"].items() if row["name"] != name}
            file.write({**record, "claims": claims})

    def pod_is_deleted_by_force(self) -> None:
        """And hangs: kubelet, and the API server, know nothing of it any more."""
        there = [which for which in (0, 1) if self.plugins[which]]
        if not self.known() or self.scene.pods is None or not there or self.scene.now - self.since < QUIET:
            return
        self.learn(there[0])
        self.forgotten.add(self.draw.choice(sorted(self.known())))
        self.save()

    def learn(self, which: int) -> None:
        """Have the record know whose everything is."""
        self.save()
        self.looks(which)
        self.scene.now += TICK + 0.1
        plugin = self.plugins[which]
        assert plugin
        plugin.follow()

    def kubelet_forgets(self) -> None:
        there = [which for which in (0, 1) if self.plugins[which]]
        if self.scene.pods is None or not there or self.scene.now - self.since < QUIET:
            return
        self.learn(there[0])
        self.scene.checkpoint_file.unlink(missing_ok=True)
        self.kubelet_restarts()
        plugin = self.plugins[there[0]]
        assert plugin
        plugin.meet()

    def record_is_damaged(self) -> None:
        """While kubelet knows all that containers have; it tells that when it is not young."""
        there = [which for which in (0, 1) if self.plugins[which]]
        if self.scene.pods is None or not there or self.forgotten or any(key[0] == CLAIM for key in self.had):
            return
        self.save()
        with open(AllocationsFile().path, "w") as file:
            file.write('{"form": 1, "b')
        self.looks(there[0])

    def instance_is_made_anew(self) -> None:
        self.part = uuid(len(self.part) + self.draw.randrange(9), "MIG")
        self.scene.snapshot = snapshot([gpu(0)], [{**mig(0, 0), "uuid": self.part}])

    def kubelet_ends(self) -> None:
        self.scene.kubelet_ends()

    def kubelet_restarts(self) -> None:
        self.scene.kubelet_starts(0)
        self.since = self.scene.now
        if not self.scene.checkpoint_file.exists():
            self.forgotten |= {key for key in self.had if key[0] != CLAIM}

    def checkpoint_is_lost(self) -> None:
        there = [which for which in (0, 1) if self.plugins[which]]
        is_young = self.scene.now - self.since < QUIET
        if self.scene.pods is not None and there and not is_young:  # no pod is given back without it
            self.learn(there[0])
            self.scene.checkpoint_file.unlink(missing_ok=True)

    def boots(self) -> None:
        self.scene.kubelet_ends()
        for which in (0, 1):
            self.ends(which)
        self.boot += 1
        is_kept = self.scene.checkpoint_file.exists()  # what is in it is given back to its pods, where it is
        self.had = {
            key: device
            for key, device in self.had.items()
            if (is_kept or key[0] == CLAIM) and key not in self.forgotten and device.uuid in (ONE, self.part)
        }
        self.pods, self.forgotten = {key: self.pods[key] for key in self.had}, set()
        if is_kept:
            self.save()

    def time_passes(self) -> None:
        self.scene.now += QUIET


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_gpu_is_given_out_in_two_ways(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with build(monkeypatch) as scene:
        node = Node(scene, random.Random(seed))
        monkeypatch.setattr(system, "boot", lambda: f"boot {node.boot}")
        for _ in range(STEPS):
            node.step()
        for which in (0, 1):
            node.ends(which)
