"""A node whose kubelet says who has what, and whose pods have processes; each `Instance` is a process of the plugin.

Instances share nothing but files. A pod `a` has the uid `uid-a`, and a process as long as it is in `pods`, `bare` or
`processes`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gpuplugin.allocation.allocation import Delivery
from gpuplugin.allocation.kubelet_view import KubeletView
from gpuplugin.allocation.offer import Resource
from gpuplugin.allocation.registry import Registry
from gpuplugin.kubelet import cgroups, podresources
from gpuplugin.kubelet.podresources import Listed
from gpuplugin.kubelet.v1beta1 import writer
from gpuplugin.record import kubelet_state, kubelet_watch
from gpuplugin.record.transitions import QUIET, list_allocations
from gpuplugin.settings import resources, settings
from gpuplugin.settings.resources import WHOLE, Device, Share, replicated
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

if TYPE_CHECKING:
    from gpuplugin.record.record_form import Allocation, Record

GPU, SHARED, PROFILE = WHOLE, f"{WHOLE}.shared", "nvidia.com/mig-1g.5gb"
ONE, PART = uuid(0), uuid(0, "MIG")
Wanted = dict[str, list[Device]]


def device(name: str = ONE, index: int = 0) -> Device:
    return Device(name, name, str(index), index)


def whole(resource: str = GPU) -> Wanted:
    return {resource: [device()]}


def parts(number: int = 2, resource: str = GPU, kind: str = TIME_SLICING) -> Wanted:
    return {resource: replicated([device()], number, Share(kind, group="gpu" if kind == MPS else ""))}


def divided() -> Wanted:
    return {PROFILE: [device(PART)]}


FORMS = {
    "whole": (whole(), GPU, ONE),
    "shared": (parts(), GPU, f"{ONE}::1"),
    "renamed": (parts(2, SHARED), SHARED, f"{ONE}::1"),
    "alone": (parts(1, SHARED), SHARED, ONE),
    "mps": (parts(2, GPU, MPS), GPU, f"{ONE}::1"),
    "mig": (divided(), PROFILE, PART),
}


class Instance:
    """A process of the plugin."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.heeds = scene, True
        self.watch = kubelet_watch.KubeletWatch(lambda: str(scene.top), heeds=lambda: self.heeds)
        self.registry = Registry(lambda work: work, self.watch)
        self.view = KubeletView(self.registry)
        self.resources: dict[str, Resource] = {}

    def look(self, desired: Wanted) -> set[str]:
        """Return what kubelet would be told to be well, after it was asked once more."""
        if self.watch.snapshot is not None:
            asyncio.run(self.watch.reconcile())
        devices = asyncio.run(self.view.decide(desired, self.scene.snapshot))
        for name in {*devices, *self.resources}:
            new = Resource(name, settings.resolve({}, {}, {}), Delivery(["envvar"]), self.registry.grant)
            self.resources.setdefault(name, new).have(devices.get(name, []), {})
        return {key for resource in self.resources.values() for key in resource.well}

    def follow(self, due: bool = False) -> bool:
        return asyncio.run(self.watch.follow(due))

    def meet(self) -> None:
        asyncio.run(self.watch.meet())

    def allocate(self, name: str, resource: str = GPU) -> None:
        answer = self.resources[resource].allocate({"devices_ids": [name]})
        self.scene.answers[resource, name] = writer("ContainerAllocateResponse")(answer)

    @property
    def record(self) -> Record:
        record = self.watch.file.read()
        assert record
        return record

    @property
    def allocations(self) -> dict[str, Allocation]:
        return {name: allocation for _, name, allocation in list_allocations(self.record)}

    def end(self) -> None:
        asyncio.run(self.registry.stop())


class Scene:
    """The node."""

    def __init__(self, top: Path) -> None:
        self.top, self.asked, self.now = top, 0, 1000.0
        self.pods: dict[str, dict[str, str]] | None = {}  # by resource and id
        self.claims: list[Claim] = []
        self.bare: list[str] = []  # pods that are listed without devices
        self.answers: dict[tuple[str, str], bytes] = {}  # to Allocate, by resource and id
        self.unlisted: dict[str, dict[str, str]] = {}  # what init containers have
        self.processes: set[str] = set()  # pods that have one, whether kubelet knows them or not
        self.writes = True  # kubelet its checkpoint when it is asked; else it is as the test says
        self.snapshot = snapshot([gpu(0)], [mig(0, 0)])
        self.folder = top / "device-plugins"
        self.folder.mkdir()
        self._server: socket.socket | None = None

    async def answer(self, _: str) -> Listed | None:
        self.asked += 1
        if self.pods is None:
            return None
        if self.writes:
            self.write_all()
        rows = [(resource, name, who) for resource, row in self.pods.items() for name, who in row.items()]
        keys = ("resource", "devices", "namespace", "pod")
        names = {f"pod default/{who}" for who in [*self.bare, *(who for *_, who in rows)]}
        devices = [dict(zip(keys, (resource, [name], "default", who))) for resource, name, who in rows]
        return Listed(devices, self.claims, names)

    def running(self, uids: object, *_: object) -> frozenset[str]:
        assert isinstance(uids, (frozenset, set, list, tuple))
        rows = [*(self.pods or {}).values(), *self.unlisted.values()]
        names = {who for row in rows for who in row.values()} | {*self.bare} | self.processes
        return frozenset(f"uid-{name}" for name in names).intersection(uids)

    def kubelet_starts(self, age: float = QUIET) -> None:
        """Start another kubelet, which has lost its checkpoint unless the test writes it."""
        self.kubelet_ends()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.folder / "kubelet.sock"))
        self._server.listen()
        self.pods = {}
        if self.writes:
            self.checkpoint_file.unlink(missing_ok=True)
        self.now += age

    def kubelet_ends(self) -> None:
        if self._server:
            self._server.close()
        (self.folder / "kubelet.sock").unlink(missing_ok=True)
        self._server, self.pods = None, None

    @property
    def checkpoint_file(self) -> Path:
        return self.folder / kubelet.CHECKPOINT

    def checkpoint(self, given: dict[str, dict[str, str]]) -> None:
        """Have kubelet's checkpoint be this, pods by resource and id, whoever asks it."""
        self.writes = False
        self._write(given)

    def write_all(self) -> None:
        """Have the checkpoint be what kubelet has given."""
        rows = {resource: dict(row) for resource, row in (self.pods or {}).items()}
        for resource, row in self.unlisted.items():
            rows.setdefault(resource, {}).update(row)
        self._write(rows)

    def _write(self, given: dict[str, dict[str, str]]) -> None:
        entries = [
            {
                "PodUID": f"uid-{who}",
                "ContainerName": "c",
                "ResourceName": resource,
                "DeviceIDs": {"-1": [name]},
                "AllocResp": base64.b64encode(self.answers.get((resource, name), b"")).decode(),
            }
            for resource, row in given.items()
            for name, who in row.items()
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
        self.checkpoint_file.write_text(json.dumps({"Data": data, "Checksum": 1}))
        os.utime(self.checkpoint_file, (self.now, self.now))

    def write_claims(self, *uids: str) -> None:
        """Have kubelet's file have claims, as before their drivers have answered."""
        entries = [
            {"ClaimUID": uid, "ClaimName": "c", "Namespace": "d", "PodUIDs": {}, "DriverState": {}} for uid in uids
        ]
        data = {"Data": json.dumps({"ClaimInfoStateList": entries}), "Checksum": 1}
        (self.top / kubelet.CLAIMS).write_text(json.dumps(data))

    def make_instances(self, *migs: tuple[int, int], is_divided: bool = True) -> Wanted:
        """Have the instances of the GPU be made again, of these numbers and GPU instances; return them."""
        made = [{**mig(0, gi - 1), "uuid": uuid(number, "MIG")} for number, gi in migs]
        self.snapshot = snapshot([gpu(0, mig=is_divided)], made)
        units = resources.units(self.snapshot)
        return {PROFILE: [unit for unit in units.values() if unit.placement]} if is_divided else whole()

    def start(self) -> Instance:
        return Instance(self)

    def settle(self, desired: Wanted) -> Instance:
        """Return a plugin that has given this out for a while, to a kubelet that has run for a while."""
        self.kubelet_starts(0)
        instance = self.start()
        instance.look(desired)
        self.now += QUIET
        return instance


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with build(monkeypatch) as scene:
        yield scene


@contextlib.contextmanager
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    top = Path(tempfile.mkdtemp(prefix="kd", dir="/tmp"))  # short, for sockets
    scene = Scene(top)
    monkeypatch.setenv("GPUSHIM_STATE", str(top / "state"))
    monkeypatch.setenv("NODE_NAME", "n")
    (top / "state/device-plugin").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(podresources, "listed", scene.answer)
    monkeypatch.setattr(cgroups, "running", scene.running)
    monkeypatch.setattr(system, "clock", lambda: scene.now)
    monkeypatch.setattr(kubelet_state, "time", SimpleNamespace(time=lambda: scene.now))
    monkeypatch.setattr(kubelet_watch, "time", SimpleNamespace(monotonic=lambda: scene.now))
    monkeypatch.setattr(system, "boot", lambda: "this boot")
    yield scene
    scene.kubelet_ends()
    shutil.rmtree(top)
