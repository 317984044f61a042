"""What is so with a simulated host in trouble: the devices that can be handed out, and those that must not be.

The rules are health.py's and xids.py's, said again: what each trouble is about, and when it is over.
Out of scope: making pods, asking kubelet.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fakehost import Host
from fakehost.gpus import Gpu

FATAL, CONTAINED, APPLICATION = 79, 94, 31  # XIDs: the GPU needs a reset; one instance is in doubt; nothing
OVER = 60.0  # seconds after which a contained error is over
SETTLED = 10.0  # seconds after which the driver's word, that nothing needs to be done, ends a fatal one
REOPEN = itertools.count()  # of MIG instances
Shares = dict[str, tuple[str, int]]  # resource's name, and replicas, by what it is of: "gpu", or a MIG profile


@dataclass
class Truth:
    """A host, and all that goes wrong with it.

    Attributes:
        host: simulated.
        shares: how its devices are shared.
        since: when each device that is sick was first seen to be none of kubelet's (time.monotonic).
    """

    host: Host
    shares: Shares
    lost: set[str] = field(default_factory=set)
    hung: str = ""
    away: dict[str, Gpu] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    fatal: dict[str, float] = field(default_factory=dict)
    contained: dict[tuple[str, int | None], float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def place(self, uuid: str) -> int:
        """Return a GPU's place among those of the host."""
        return [gpu.uuid for gpu in self.host.gpus].index(uuid)

    def xid(self, uuid: str, number: int, gi: int | None = None) -> None:
        """Let the driver report an error."""
        now = time.monotonic()
        if number == FATAL:
            self.fatal[uuid] = now
        if number == CONTAINED:
            self.contained[uuid, gi] = now
        self.host.xid(self.place(uuid), number, gi)

    def lose(self, uuid: str) -> None:
        """Lose a GPU, or find it."""
        (self.host.find if uuid in self.lost else self.host.lose)(self.place(uuid))
        self.lost ^= {uuid}

    def hang(self, uuid: str) -> None:
        """Let a GPU's calls hang; "" for none."""
        self.hung = uuid
        self.host.hang(self.place(uuid) if uuid else None)

    def ask(self, uuid: str, action: int) -> None:
        """Let the driver ask for an action; 0 for none."""
        self.actions[uuid] = action
        self.host.recovery(self.place(uuid), action)

    def unplug(self, uuid: str) -> None:
        """Take a GPU away."""
        self.away[uuid] = self.host.gpus.pop(self.place(uuid))
        self.host.update()

    def plug(self, uuid: str) -> None:
        """Bring a GPU back, which is bound to the driver again."""
        self.host.gpus.append(self.away.pop(uuid))
        self.host.gpus.sort(key=lambda gpu: gpu.index)
        self._forget([uuid])
        self.host.update()

    def reload(self) -> None:
        """Load the driver again."""
        self._forget([gpu.uuid for gpu in self.host.gpus])
        self.host.modify = not self.host.modify
        self.host.update()

    def divide(self, layout: Sequence[tuple[int, int, str]]) -> None:
        """Make other MIG instances of the GPU that has some, perhaps in the same places."""
        word = f"MIG-{next(REOPEN):08d}-0000-4000-8000-00000000000"
        (place,) = [number for number, gpu in enumerate(self.host.gpus) if gpu.mig]
        self.host.set_mig(place, [(*one, f"{word}{one[0]}") for one in layout])

    def heal(self, uuid: str) -> str:
        """End what is wrong with a GPU, and say how."""
        if uuid in self.lost:
            self.lose(uuid)
            return "found"
        if self.actions.get(uuid):
            self.ask(uuid, 0)
            return "recovered"
        if uuid == self.hung:
            self.hang("")
            return "answers"
        self.reload()
        return "driver"

    def _forget(self, uuids: list[str]) -> None:
        self.fatal = {uuid: at for uuid, at in self.fatal.items() if uuid not in uuids}
        self.contained = {key: at for key, at in self.contained.items() if key[0] not in uuids}

    def ill(self, gpu: str) -> bool:
        """Return whether nothing of a GPU may be handed out."""
        now, action = time.monotonic(), self.actions.get(gpu)
        fatal = gpu in self.fatal and (action != 0 or now < self.fatal[gpu] + SETTLED)
        contained = now < self.contained.get((gpu, None), -OVER) + OVER
        return fatal or contained or bool(action) or gpu in self.lost or gpu == self.hung

    def devices(self) -> dict[str, tuple[str, bool]]:
        """List what there is, by UUID: "gpu" or a MIG profile, and whether it is well."""
        found, now = {}, time.monotonic()
        for gpu in self.host.gpus:
            well = not self.ill(gpu.uuid)
            if not gpu.mig:
                found[gpu.uuid] = ("gpu", well)
            for mig in gpu.mig:
                doubt = now < self.contained.get((gpu.uuid, mig.gi), -OVER) + OVER
                found[mig.uuid] = (mig.profile, well and not doubt)
        return found

    def ids(self) -> dict[str, list[str]]:
        """List the ids that kubelet may give out, by resource."""
        found: dict[str, list[str]] = {}
        for uuid, (kind, well) in self.devices().items():
            name, replicas = self.shares.get(kind) or (f"nvidia.com/mig-{kind}", 1)
            ids = [uuid] if replicas == 1 else [f"{uuid}::{number}" for number in range(replicas)]
            found.setdefault(name, []).extend(ids if well else ())
        return {name: sorted(ids) for name, ids in found.items() if ids}

    def look(self, view: dict[str, list[str]]) -> None:
        """Take note of since when kubelet has had nothing of the devices that are sick."""
        there = {one.partition("::")[0] for ids in view.values() for one in ids}
        sick = {uuid for uuid, (_, well) in self.devices().items() if not well}
        self.since = {
            uuid: self.since.get(uuid, time.monotonic())
            for uuid in sick
            if uuid not in there or uuid in self.since  # it may come back for a moment: that is what is looked for
        }

    def nodes(self, uuids: set[str]) -> set[str]:
        """Name the nodes of GPUs that a container with these devices has."""
        parts: dict[str, Any] = {mig.uuid: gpu for gpu in self.host.gpus for mig in gpu.mig}
        parts.update({gpu.uuid: gpu for gpu in [*self.host.gpus, *self.away.values()]})
        return {f"nvidia{parts[uuid].minor}" for uuid in uuids if uuid in parts}
