"""GPUs that are cut on demand: their partitions are published, and made when a claim is prepared.

The record has a partition before it is made, by its device's name, and until it is gone. So whenever a process is
killed, the next one knows what was made here. Instances that somebody else made are published as they are, and never
touched. No process of the plugin but a child loads NVML; children run one after the other.
Out of scope: what partitions are (partitions.py), the child (partition_child.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.dra import offered, spec
from gpuplugin.dra.partition_child import CHECK, LIST, MAKE, REMOVE
from gpuplugin.dra.partitions import divide, get_parent, is_unmade, name_partition
from gpuplugin.processes import spawn
from gpuplugin.record.transitions import list_made
from gpuplugin.settings import resources
from gpuplugin.snapshot import node_requests, release
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import failure, nvml_program
from gpushim.mig.fit import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.dra.claim import Claim
    from gpuplugin.dra.offered import Offered
    from gpuplugin.record import record_form
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

SLOW = 20.0  # seconds for one change of a GPU: the driver may have to initialise it
KILLED = 1.0  # for which a child is waited for that was killed
TOGETHER, LINE = 16, 1 << 20  # changes by one child; bytes of an answer
SOON = 10.0  # seconds for a snapshot of after a removal; then it is looked for again
AGAIN = 3.0  # seconds between requests for a snapshot
POLL = 0.05
UNSEEN = "what was made for a claim is removed, and no newer snapshot says so"  # it would be published as another's
ALL = 0, 8  # memory slices; of an instance whose placement NVML does not tell


class Published(NamedTuple):
    """What a node has to publish, and what engines do not find of it, as spec.missing has it."""

    devices: list[Offered]
    counters: list[dict[str, Any]]
    lacks: frozenset[str]
    sentence: str


class OnDemand:
    """The GPUs of a node that are cut on demand.

    Args:
        snapshot: returns the one of which all that is; None while the GPUs are let go.
        devices: returns what this node has now, by name.
    """

    def __init__(self, snapshot: Callable[[], Snapshot | None], devices: Callable[[], Mapping[str, Offered]]) -> None:
        self._snapshot, self._devices = snapshot, devices
        self._profiles: dict[str, list[Profile]] = {}  # by UUID of the GPU
        self._queue: dict[tuple[str, str, str], asyncio.Future[dict[str, Any]]] = {}  # for the next child
        self._pid = 0  # of the last one

    @functools.cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()  # not before: Python 3.9 ties it to the loop of that moment

    async def learn(self, snapshot: Snapshot, values: Mapping[str, Any]) -> None:
        """Ask NVML once for the profiles of each such GPU.

        Raises:
            GpushimError: it does not tell them of all.
        """
        uuids = [uuid for uuid in find_gpus(snapshot, values["on-demand"]).values() if uuid not in self._profiles]
        questions = (self._ask(LIST, uuid) for uuid in uuids)
        answers = await asyncio.gather(*questions, return_exceptions=True)  # one that is lost keeps no other from it
        for uuid, answer in zip(uuids, answers):
            if not isinstance(answer, BaseException):
                self._profiles[uuid] = [Profile(*row) for row in answer]
        for error in answers:
            if isinstance(error, BaseException):
                raise error

    def publish(self, snapshot: Snapshot, settings: Settings, names: Collection[str]) -> Published:
        """Return all that a node has to publish.

        Args:
            snapshot: of the host's inventory.
            settings: in force.
            names: of the devices that were made for claims.
        """
        devices, lacks, sentence = spec.devices(snapshot, settings)
        chosen = find_gpus(snapshot, settings.values["on-demand"])
        gpus = {index: uuid for index, uuid in chosen.items() if uuid in self._profiles}
        if not gpus:
            return Published(devices, [], lacks, sentence)
        made, occupied = _sort_instances(snapshot, gpus, names)
        wholes = [{**gpu, "mig": gpu["mig"] and gpu["index"] not in gpus} for gpu in snapshot["gpus"]]
        without_migs = {**snapshot, "gpus": wholes, "mig": []}
        cuts = [
            divide(device, self._profiles[device.uuid], occupied[device.uuid])
            for device in offered.devices(without_migs, spec.excluded(settings.values))  # type: ignore[arg-type]
            if device.uuid in occupied
        ]
        present = {name: uuid for name, uuid in made.items() if uuid not in lacks}
        return Published(
            [device for device in devices if device.uuid not in made.values()]
            + [device._replace(uuid=present.get(device.name, device.uuid)) for row, _ in cuts for device in row],
            [counter_set for _, counter_set in cuts],
            lacks,
            sentence,
        )

    async def check(self, claim: Claim) -> None:
        """Refuse partitions of a claim that are there, though the record does not say that they were made.

        Raises:
            GpushimError: somebody else has made one, or NVML does not tell.
        """
        await asyncio.gather(*(self._ask(CHECK, gpu, name) for name, gpu in self.find_unmade(claim).items()))

    async def make(self, claim: Claim, deadline: float) -> None:
        """Make the partitions of a claim, which the record has, and wait until engines find them.

        Raises:
            GpushimError: NVML refuses, or it takes longer.
        """
        names = self.find_unmade(claim)  # until the front has them by a new snapshot, for which `_wait` asks
        await asyncio.gather(*(self._ask(MAKE, gpu, name) for name, gpu in names.items()))
        if not await self._wait(lambda: not self.find_unmade(claim), deadline):
            raise GpushimError(
                f"{', '.join(names)} of claim {claim} is made, and neither snapshot nor CDI spec has it yet; gpushim "
                "refresh tells why",
                INVENTORY,
            )

    def find_unmade(self, claim: Claim) -> dict[str, str]:
        """Return which partitions of a claim are not there, and the UUIDs of their GPUs."""
        devices = self._devices()
        return {
            result.device: get_parent(devices[result.device])
            for result in claim.results
            if result.device in devices and is_unmade(devices[result.device])
        }

    async def remove(self, claims: Mapping[str, record_form.Claim]) -> dict[str, str]:
        """Remove the partitions of claims; return sentences about those of which one is still there, by uid."""
        rows = [(uid, device) for uid, claim in claims.items() for device in list_made(claim)]
        errors = await asyncio.gather(
            *(self._ask(REMOVE, device["gpu"], device["device"]) for _, device in rows), return_exceptions=True
        )
        clock, problems = system.clock(), dict[str, str]()
        for (uid, _), error in zip(rows, errors):
            if error:
                name = f"{claims[uid]['namespace']}/{claims[uid]['name']}"
                problems[uid] = f"claim {name}: {error}; that is tried again: gpushim ps lists who uses it"
        removed = {uid for uid, _ in rows} - problems.keys()
        if removed and not await self._wait(lambda: self._looked() > clock, time.monotonic() + SOON):
            problems.update(dict.fromkeys(removed, UNSEEN))
        return problems

    def _looked(self) -> float:
        snapshot = self._snapshot()
        return snapshot["looked"] if snapshot else 0.0

    async def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Have the snapshot renewed until a condition holds; return False if it does not before the deadline."""
        asked = -AGAIN
        while not condition():
            clock = time.monotonic()
            if clock > deadline:
                return False
            if clock - asked >= AGAIN:
                asked = clock
                with contextlib.suppress(OSError):  # the next request may be written
                    node_requests.ask(renewed=True)
            await asyncio.sleep(POLL)
        return True

    async def _ask(self, action: str, gpu: str, name: str = "") -> Any:
        """Have a child do something, together with what others have asked for meanwhile.

        Raises:
            GpushimError: NVML refuses, or takes longer.
        """
        future = self._queue.setdefault((action, gpu, name), asyncio.get_running_loop().create_future())
        async with self._turn:
            while not future.done():
                requests = [*self._queue][:TOGETHER]
                futures = [self._queue.pop(request) for request in requests]
                answers: list[Any] = []
                try:
                    answers = await self._run(requests)
                finally:
                    failed = {"error": "NVML has ended its process"}
                    for other, answer in zip(futures, answers + [failed] * len(futures)):
                        other.set_result(answer)
        if "error" in future.result():
            raise GpushimError(f"{name or gpu}: {future.result()['error']}", INVENTORY)
        return future.result()["answer"]

    async def _run(self, requests: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Return what a child has answered before its end."""
        if not (snapshot := self._snapshot()):
            return [{"error": release.PROBLEM}] * len(requests)
        if self._pid and not spawn.has_ended(self._pid):
            return [{"error": f"NVML has not ended its last change of MIG instances; {failure.SLOW}"}] * len(requests)
        library = nvml_program.library(snapshot)
        words = nvml_program.program("gpuplugin.dra.partition_child", library, json.dumps(requests))
        reading, writing = os.pipe()
        try:
            self._pid = spawn.spawn(words, stdout=writing)
        finally:
            os.close(writing)
        reader, file = asyncio.StreamReader(limit=LINE), os.fdopen(reading, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        answers: list[dict[str, Any]] = []
        try:
            while line := await asyncio.wait_for(reader.readline(), SLOW):
                answers.append(json.loads(line))
        except asyncio.TimeoutError:
            answers.append({"error": f"NVML has not answered within {SLOW:g} s; {failure.SLOW}"})
        except ValueError:
            pass  # it has ended within a line
        finally:
            transport.close()
            spawn.kill(self._pid)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(spawn.wait_for(self._pid), KILLED)
        return answers


def find_gpus(snapshot: Snapshot, texts: Sequence[str], mode: bool = True) -> dict[int, str]:
    """Return the UUIDs of GPUs in MIG mode that are cut on demand, or of those without the mode, by index."""
    gpus = resources.list_excluded(snapshot, texts)
    return {gpu["index"]: gpu["uuid"] for gpu in gpus if gpu["mig"] == mode and gpu["uuid"] and not gpu["problem"]}


def _sort_instances(
    snapshot: Snapshot, gpus: Mapping[int, str], names: Collection[str]
) -> tuple[dict[str, str], dict[str, list[tuple[int, int]]]]:
    """Return the UUIDs of what was made for claims, by name, and the placements of all else, by UUID of its GPU."""
    made, occupied = dict[str, str](), {uuid: list[tuple[int, int]]() for uuid in gpus.values()}
    for mig in snapshot["mig"]:
        if uuid := gpus.get(mig["gpu"]):
            start, size = mig["placement"] or ALL
            name = name_partition(uuid.lower(), mig["profile"], start)
            if name in names:
                made[name] = mig["uuid"]
            else:
                occupied[uuid].append((start, size))
    return made, occupied
